"""Run by CI in an environment that holds the wheel and its base dependencies alone: the serving machine."""

import sys
from importlib.util import find_spec

HEAVY = {"torch", "transformers", "sentence_transformers", "llama_index.core", "mteb", "datasets"}

present = {name for name in HEAVY if find_spec(name) is not None}
assert not present, f"this environment is not bare: it has {present}"

from qdrant_client import QdrantClient  # noqa: E402

from care_qdrant import CareModel, Retriever  # noqa: E402
from care_qdrant.errors import MissingExtra  # noqa: E402
from care_qdrant.ingestion.ingest import ingest  # noqa: E402
from care_qdrant.types import Document  # noqa: E402

model = CareModel.load()
vectors = model.encode_query(["糖尿病人能吃西瓜吗", "心梗怎么急救"])
assert vectors.shape == (2, model.dim)
assert model.encode_document(["心肌梗死的急救"]).shape == (1, model.dim)
assert "torch" not in sys.modules
try:
    CareModel.load(device="cpu").encode_document(["二甲双胍"])
except MissingExtra as error:
    assert "pip install '.[ingest]'" in str(error)
else:
    raise AssertionError("torch encoded a document, and is not installed")

client = QdrantClient(":memory:")
ingest([Document("1", "心肌梗死的急救"), Document("2", "糖尿病的饮食")], model, client, "docs")
[[hit]] = Retriever(client, "docs", model).search(["心梗怎么急救"], top_k=1)
assert hit.text == "心肌梗死的急救"
assert hit.score > 0.3, hit
print(f"bare wheel: {model.name} encodes documents and answers queries on {sys.version.split()[0]} without torch")
