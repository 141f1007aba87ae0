"""Collections as other tools leave them: every schema with every payload layout."""

import json
import uuid
from typing import Any

import numpy as np
from qdrant_client import QdrantClient, models

from care_qdrant.qdrant.point_equality import vectors_of
from tests.tiny import medical_texts

DIM = 8
NAME = "articles"

_COSINE = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
_DOT = models.VectorParams(size=DIM, distance=models.Distance.DOT)

SCHEMAS: dict[str, dict[str, Any]] = {
    "unnamed": {"vectors_config": _COSINE},
    "named": {"vectors_config": {"old": _COSINE}},
    "two": {"vectors_config": {"old": _COSINE, "other": _DOT}},
    "sparse": {"vectors_config": {"old": _COSINE}, "sparse_vectors_config": {"terms": models.SparseVectorParams()}},
}
TOOLS = ("llama-index", "langchain", "haystack", "plain", "nested")


def payload(tool: str, number: int, text: str) -> dict[str, Any]:
    """Build what a tool writes for a text."""
    metadata = {"dept": "内科", "pages": [number, None], "score": number / 3}
    if tool == "langchain":
        return {"page_content": text, "metadata": {**metadata, "source": f"{number}.pdf"}}
    if tool == "haystack":
        return {"id": f"h{number}", "content": text, "meta": metadata, "dataframe": None}
    if tool == "nested":
        return {**metadata, "document": {"body": text, "lang": "zh"}}
    if tool == "plain":
        return {**metadata, "text": text}
    node = {"id_": str(number), "metadata": metadata, "text": text, "class_name": "TextNode"}
    content = json.dumps(node, ensure_ascii=False)
    return {**metadata, "_node_content": content, "_node_type": "TextNode", "doc_id": f"d{number}"}


def fill(client: QdrantClient, schema: str, tool: str, count: int = 40) -> None:
    """Make the collection."""
    client.create_collection(NAME, **SCHEMAS[schema], metadata={"owner": "team"})
    if count:
        client.upsert(NAME, [point(schema, tool, n, text) for n, text in enumerate(medical_texts(count))], wait=True)


def point(schema: str, tool: str, number: int, text: str) -> models.PointStruct:
    """Build one point, as the tool's own pipeline would."""
    identity: int | str = number if number % 2 else str(uuid.uuid5(uuid.NAMESPACE_URL, str(number)))
    return models.PointStruct(id=identity, vector=vector(schema, number), payload=payload(tool, number, text))


def vector(schema: str, number: int) -> Any:
    """Build the vectors of one point, of length one: local mode normalises others anew, in place, at each search."""
    random = np.random.default_rng(number)
    row = np.zeros(DIM)
    row[random.permutation(DIM)[:4]] = random.choice([-0.5, 0.5], size=4)
    row = row.tolist()
    sparse = models.SparseVector(indices=[7, number % 5 + 20], values=[0.5, 1.5])
    named = {"old": row, "other": row[::-1], "terms": sparse}
    names = {"named": ["old"], "two": ["old", "other"], "sparse": ["old", "terms"]}
    return row if schema == "unnamed" else {name: named[name] for name in names[schema]}


def contents(client: QdrantClient, without: str | None = None, name: str = NAME) -> dict[Any, Any]:
    """Return every point, bit for bit; without what an attach may add, if its vector is named."""
    records, _ = client.scroll(name, limit=10_000, with_payload=True, with_vectors=True)
    found = {}
    for record in records:
        vectors, kept = vectors_of(record), dict(record.payload or {})
        if without is not None:
            vectors.pop(without, None)
            kept.pop("_care", None)
        found[record.id] = (kept, vectors)
    return found


def old_answers(client: QdrantClient, schema: str, name: str = NAME, limit: int = 10) -> list[list[tuple[Any, float]]]:
    """Ask what the users of the collection ask all the time."""
    searches: list[dict[str, Any]] = [{"query": np.linspace(-1, 1, DIM).tolist(), "using": "old"}]
    if schema == "unnamed":
        searches[0].pop("using")
    if schema == "two":
        searches.append({**searches[0], "using": "other"})
    if schema == "sparse":
        searches.append({"query": models.SparseVector(indices=[21], values=[1.0]), "using": "terms"})
    answers = (client.query_points(name, limit=limit, **search).points for search in searches)
    return [[(hit.id, hit.score) for hit in points] for points in answers]
