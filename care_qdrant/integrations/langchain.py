"""`CareEmbeddings`: the model as LangChain embeddings (extra ``langchain``)."""

from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings
from typing_extensions import override

from care_qdrant.encoders.usable import require_texts
from care_qdrant.model.care_model import CareModel, Precision, require_saved_model
from care_qdrant.model.hub import BUILT_IN
from care_qdrant.types import embedded_text


class CareEmbeddings(Embeddings):
    """Embeds queries with the small encoder and documents with the large one; each loads with its first text.

    Example:
        >>> from care_qdrant.integrations.langchain import CareEmbeddings
        >>> len(CareEmbeddings().embed_query("耳鸣吃什么药"))
        384
    """

    def __init__(
        self,
        model: str | Path = BUILT_IN,
        *,
        revision: str | None = None,
        device: str | None = None,
        precision: Precision = "auto",
        query_task: str | None = None,
    ) -> None:
        """Open a model; no weights are read."""
        settings = {"model": model, "revision": revision, "device": device, "precision": precision}
        self._settings: dict[str, Any] = {**settings, "query_task": query_task}
        self.model = CareModel.load(model, revision=revision, device=device, precision=precision)
        self._query_prompt = None if query_task is None else self.model.query_prompt(query_task)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings and the fingerprint: copies and pickles open the model again, and refuse another one."""
        return {"settings": self._settings, "fingerprint": self.model.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        CareEmbeddings.__init__(self, **state["settings"])
        require_saved_model(self.model, state["fingerprint"], f"{self._settings['model']}: these embeddings")

    @override
    def embed_query(self, text: str) -> list[float]:
        [vector] = self.model.encode_query([text], prompt=self._query_prompt).tolist()
        values: list[float] = vector
        return values

    @override
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        require_texts(texts)
        # Blanks around a text are tokens to a language model, and ingestion embeds none.
        bare = [embedded_text("", text) for text in texts]
        vectors: list[list[float]] = self.model.encode_document(bare).tolist() if bare else []
        return vectors
