"""Cost of a fresh process up to its first answer."""

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from qdrant_client import QdrantClient, models

from care_qdrant.errors import CareError
from care_qdrant.model.care_model import CareModel

from .random_pair import sample_queries

COLLECTION = "corpus"
QUERY = "高血压患者饮食上要注意什么？"

PROGRAMS = {
    "core": "from care_qdrant.model.care_model import CareModel\n"
    "CareModel.load({model!r}, precision='int8').encode_query([{query!r}])",
    "care": "from llama_index.embeddings.care import CareEmbedding\n"
    "CareEmbedding(model={model!r}, precision='int8').get_query_embedding({query!r})",
    "huggingface": "from llama_index.embeddings.huggingface import HuggingFaceEmbedding\n"
    "HuggingFaceEmbedding(model_name={model!r} + '/query', device='cpu').get_query_embedding({query!r})",
    "imports": "import llama_index.core, llama_index.vector_stores.qdrant",
    "query": "from pathlib import Path\n"
    "from care_qdrant.qdrant.connection import open_client\n"
    "from llama_index.core import VectorStoreIndex\n"
    "from llama_index.embeddings.care import CareEmbedding\n"
    "from llama_index.vector_stores.care import CareVectorStore\n"
    "embedding = CareEmbedding(model={model!r}, precision='int8', documents=False)\n"
    "with open_client(path=Path({qdrant!r})) as client:\n"
    "    store = CareVectorStore('" + COLLECTION + "', client, embedding=embedding)\n"
    "    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)\n"
    "    assert len(index.as_retriever(similarity_top_k=3).retrieve({query!r})) == 3\n"
    "import sys\n"
    "assert not {{'torch', 'transformers'}} & set(sys.modules)",
}
"""Name → program: the model alone, each embedding, the imports of the stock stack, and a whole retrieval."""

_REPORT = """
import json, resource
usage = resource.getrusage(resource.RUSAGE_SELF)
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([usage.ru_utime + usage.ru_stime, int(peak) / 1024]))
"""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Medians over fresh processes."""

    program: str
    processes: int
    cpu_seconds: float
    peak_memory_mib: float


def measure_cold_starts(model: Path, qdrant: Path, processes: int) -> list[ColdStart]:
    """Run each program ``processes`` times, in turn."""
    _write_collection(model, qdrant)
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    for _ in range(processes):
        for name, program in PROGRAMS.items():
            runs[name].append(_run(program.format(model=str(model), qdrant=str(qdrant), query=QUERY)))
    return [
        ColdStart(name, processes, *(statistics.median(column) for column in zip(*measured, strict=True)))
        for name, measured in runs.items()
    ]


def _run(program: str) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", program + _REPORT], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CareError(f"{program}\nfailed: {done.stderr.strip().splitlines()[-1:]}")
    cpu_seconds, peak_memory_mib = json.loads(done.stdout.splitlines()[-1])
    return cpu_seconds, peak_memory_mib


def _write_collection(model: Path, qdrant: Path) -> None:
    """Write a thousand points, whose vectors are queries: only the schema and the size matter here."""
    from care_qdrant.qdrant.collection import Collection

    care, texts = CareModel.load(model), sample_queries()
    client = QdrantClient(path=str(qdrant))
    params = models.VectorParams(size=care.dim, distance=models.Distance.COSINE)
    client.create_collection(COLLECTION, vectors_config={care.name: params})
    Collection(client, COLLECTION).write_contract(care.name, care.contract())
    vectors = care.encode_query(texts)
    client.upsert(
        COLLECTION,
        [
            models.PointStruct(id=number, vector={care.name: vector.tolist()}, payload={"text": text})
            for number, (text, vector) in enumerate(zip(texts, vectors, strict=True))
        ],
    )
    client.close()
