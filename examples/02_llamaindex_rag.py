"""A LlamaIndex query engine over the ingested sample: CARE retrieves, and a stand-in for the language model quotes.

Replace `QuotingLLM` by your own model; nothing else changes. Runs offline:

    pip install -e '.[llama-index]'
    python examples/02_llamaindex_rag.py [MODEL]
"""

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.llms import CompletionResponse, CompletionResponseGen, CustomLLM, LLMMetadata
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
from llama_index.embeddings.care import CareEmbedding
from llama_index.postprocessor.care import CareRerank
from llama_index.vector_stores.care import CareVectorStore
from typing_extensions import override

from care_qdrant import CareModel, IngestSettings, ingest, open_client

SAMPLE = Path(__file__).parent / "sample" / "corpus.jsonl"
QUESTIONS = ["吃二甲双胍老是恶心拉肚子怎么办", "HbA1c 6.5% 是糖尿病吗", "收缩压 140 mmHg 算高血压吗"]


class QuotingLLM(CustomLLM):
    """Answers with the first two sentences of the best passage: it cannot make anything up."""

    @property
    @override
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="quoting", context_window=8_192)

    @override
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        context = prompt.split("---------------------")[1]
        passage = context.strip().split("\n\n")[0]
        sentences = re.split(r"(?<=[。！？])|(?<=[.!?])(?=\s)", passage)  # Chinese and English ends
        return CompletionResponse(text="".join(sentences[:2]))

    @override
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        yield self.complete(prompt)


def main(model: str = "built-in") -> None:
    with tempfile.TemporaryDirectory() as folder, open_client(path=Path(folder)) as client:
        # Offline, once: the document encoder writes the corpus. On the command line: care-ingest corpus.jsonl
        ingest(SAMPLE, CareModel.load(model), client, "sample", settings=IngestSettings(sparse=True))

        # Online: the small query encoder. documents=False makes sure that the large one is never loaded.
        embedding = CareEmbedding(model=model, documents=False)
        store = CareVectorStore("sample", client, embedding=embedding)
        index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)

        engine = index.as_query_engine(llm=QuotingLLM(), similarity_top_k=3)
        for question in QUESTIONS:
            answer = engine.query(question)
            print(f"问：{question}\n答：{answer}")
            for source in answer.source_nodes:
                title, department = (source.node.metadata[key] for key in ("title", "department"))
                print(f"    {source.score:.3f}  {source.node.ref_doc_id}  {title}  [{department}]")
            print()

        print("只看药剂科，用 BM25 找，再按文档向量重排：")
        pharmacy = MetadataFilters(filters=[MetadataFilter(key="department", value="药剂科")])
        lexical = index.as_retriever(similarity_top_k=10, vector_store_query_mode="sparse", filters=pharmacy)
        rerank = CareRerank(embedding=embedding, vector_store=store, top_n=3)
        for found in rerank.postprocess_nodes(lexical.retrieve(QUESTIONS[0]), query_str=QUESTIONS[0]):
            print(f"    {found.score:.3f}  {found.node.ref_doc_id}  {found.node.metadata['title']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
