"""A collection that LlamaIndex wrote from the sample, its 60 questions, and judges who know the sample's answers."""

import json
import random
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore

from care_qdrant import open_client

SAMPLE = Path(__file__).parents[2] / "examples" / "sample"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_collection(folder: Path, documents: int | None = None) -> None:
    """Let LlamaIndex write the sample."""
    nodes = [
        TextNode(id_=f"{number:08x}-0000-4000-8000-000000000000", text=row["text"], metadata={"name": row["id"]})
        for number, row in enumerate(rows(SAMPLE / "corpus.jsonl")[:documents])
    ]
    for node in nodes:
        node.excluded_embed_metadata_keys = ["name"]
    with open_client(path=folder) as client:
        store = CareVectorStore("clinic", client, embedding=(embedding := CareEmbedding(model="built-in")))
        storage = StorageContext.from_defaults(vector_store=store)
        VectorStoreIndex(nodes, storage_context=storage, embed_model=embedding)


@cache
def truth() -> Mapping[tuple[str, str], int]:
    """Return query text and document text → grade of the sample."""
    texts = {row["id"]: row["text"] for row in rows(SAMPLE / "corpus.jsonl")}
    queries = {row["id"]: row["text"] for row in rows(SAMPLE / "queries.jsonl")}
    found = rows(SAMPLE / "qrels.jsonl")
    return {(queries[row["query_id"]], texts[row["document_id"]]): row["score"] for row in found}


def rater(errors: Mapping[str, float], always: Mapping[str, str] | None = None) -> Callable[[str, str, str], str]:
    """Return judges that err on a share of the pairs; the same way each time they are asked."""

    def rate(model: str, query: str, document: str) -> str:
        if always and model in always:
            return always[model]
        grade = truth().get((query, document), -1)
        right = "DCAS"[grade + 1] if grade >= 0 else "D"
        draw = random.Random(f"{model}\n{query}\n{document}")
        if draw.random() >= errors.get(model, 0.0):
            return right
        return "A" if right in "BCD" else "C"

    return rate


def config(
    folder: Path,
    url: str,
    judges: Mapping[str, int],
    *,
    questions: int = 60,
    pool: str = "depth = 12",
    judging: str = "",
    vote: str = "",
    build: str = "drop = true",
    judge: str = "",
) -> Path:
    """Write the questions and a configuration; ``judges`` are names with their tiers."""
    lines = (SAMPLE / "queries.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:questions]
    (folder / "questions.jsonl").write_text("".join(lines), encoding="utf-8")
    tables = "".join(
        f'[[judge]]\nname = "{name}"\nurl = "{url}"\nmodel = "{name}"\nfamily = "{name}"\ntier = {tier}\n'
        f"input_price = 1.0\noutput_price = 4.0\nrequests_per_minute = 60000\ntimeout_seconds = 1.0\n"
        f"max_wait_seconds = 0.05\n{judge}\n"
        for name, tier in judges.items()
    )
    path = folder / "clinic.toml"
    path.write_text(
        f"""
name = "clinic"
folder = "clinic"
[source]
collection = "clinic"
path = "qdrant"
queries = "questions.jsonl"
license = "apache-2.0"
origin = "written for this test"
[pool]
{pool}
[judging]
{judging}
[vote]
{vote}
[build]
{build}
[[retriever]]
name = "pair"
family = "care"
{tables}""",
        encoding="utf-8",
    )
    return path
