"""The compared embeddings: the same weights behind LlamaIndex's stock class and behind ours."""

from pathlib import Path

from llama_index.core.base.embeddings.base import BaseEmbedding

from care_qdrant.errors import needs_extra

STACKS = ("huggingface", "care-fp32", "care-int8")
STOCK = "huggingface"


def open_stack(name: str, model: Path, workers: int = 1) -> BaseEmbedding:
    """Open one of `STACKS` on a CARE folder, without a cache of queries."""
    if name == STOCK:
        with needs_extra("bench", "the comparison with the stock class"):
            from llama_index.embeddings.huggingface import HuggingFaceEmbedding

        return HuggingFaceEmbedding(model_name=str(model / "query"), device="cpu")
    from llama_index.embeddings.care import CareEmbedding

    settings = {"model": str(model), "precision": name.removeprefix("care-"), "query_workers": workers}
    return CareEmbedding.from_dict({**settings, "query_cache_size": 0})
