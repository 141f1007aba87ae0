"""A collection that another tool wrote gets CARE vectors beside its own, and LlamaIndex searches the new ones.

The collection is one of LangChain's: an unnamed vector of another model, the text under ``page_content``, the metadata
under ``metadata``. Nothing of it changes, and the old search goes on as before. It needs
``pip install -e '.[llama-index]' 'llama-index-vector-stores-qdrant<0.11'``, and runs offline:

    python examples/03_existing_collection.py [MODEL]
"""

import json
import sys
import tempfile
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
from llama_index.core import VectorStoreIndex
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant import CareModel, attach_vector, open_client, plan_attach

SAMPLE = Path(__file__).parent / "sample" / "corpus.jsonl"
QUESTION = "吃二甲双胍老是恶心拉肚子怎么办"
OLD_DIM = 512


def old_model(text: str) -> list[float]:
    """Stand in for the model that is in production: hashed pairs of characters."""
    vector = np.zeros(OLD_DIM)
    for pair in pairwise(text):
        vector[zlib.crc32("".join(pair).encode()) % OLD_DIM] += 1
    return [float(value) for value in vector]


def write_as_langchain_does(client: QdrantClient) -> None:
    rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    params = models.VectorParams(size=OLD_DIM, distance=models.Distance.COSINE)
    client.create_collection("live", vectors_config=params)
    points = [
        models.PointStruct(
            id=number,
            vector=old_model(row["text"]),
            payload={"page_content": row["text"], "metadata": {**row["metadata"], "source": row["id"]}},
        )
        for number, row in enumerate(rows)
    ]
    client.upload_points("live", points, wait=True)


def old_search(client: QdrantClient) -> list[str]:
    found = client.query_points("live", old_model(QUESTION), using="", limit=3)
    return [(point.payload or {})["metadata"]["source"] for point in found.points]


def main(model: str = "built-in") -> None:
    with tempfile.TemporaryDirectory() as folder, open_client(path=Path(folder)) as client:
        write_as_langchain_does(client)
        before = old_search(client)
        care = CareModel.load(model)

        # care attach live --dry-run; care attach live
        plan = plan_attach(client, "live", care)
        print(f"written by {plan.tool}, texts in {plan.text_field!r}; to encode: {plan.points_to_encode}")
        report = attach_vector(client, "live", care)
        again = attach_vector(client, "live", care)
        print(f"attached: {report.encoded} encoded, {report.covered} covered; once more: {again.encoded} encoded")
        print(f"the old search: {', '.join(before)}; the same now: {old_search(client) == before}")

        stock = QdrantVectorStore("live", client, dense_vector_name=care.name)
        print(f"the stock store, asked for vector {care.name!r}, searches vector {stock.dense_vector_name!r}\n")

        embedding = CareEmbedding(model=model, documents=False)
        store = CareVectorStore("live", client, embedding=embedding)
        index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
        chosen = MetadataFilter(key="department", value=["药剂科", "检验科"], operator=FilterOperator.IN)
        for title, filters in (("全部", None), ("只看药剂科和检验科", MetadataFilters(filters=[chosen]))):
            print(f"问：{QUESTION}（{title}，向量 {store.dense_vector_name!r}）")
            for one in index.as_retriever(similarity_top_k=3, filters=filters).retrieve(QUESTION):
                department = one.node.metadata["department"]
                print(f"    {one.score:.3f}  {one.node.ref_doc_id}  [{department}]  {one.node.get_content()[:30]}…")


if __name__ == "__main__":
    main(*sys.argv[1:])
