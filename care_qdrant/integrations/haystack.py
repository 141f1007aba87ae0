"""`CareTextEmbedder` and `CareDocumentEmbedder`: the model as Haystack components (extra ``haystack``)."""

from dataclasses import replace
from functools import cached_property
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict

from care_qdrant.errors import UnusableText
from care_qdrant.model.care_model import CareModel, require_saved_model
from care_qdrant.model.hub import BUILT_IN
from care_qdrant.types import embedded_text


class _Component:
    """Base of both components: settings that Haystack writes to YAML, and their model."""

    def __init__(self, model: str = BUILT_IN, device: str | None = None, fingerprint: str | None = None) -> None:
        """Keep the settings; nothing is read before `warm_up` or the first text."""
        self.model, self.device, self.fingerprint = model, device, fingerprint

    @cached_property
    def care_model(self) -> CareModel:
        """The model."""
        model = CareModel.load(self.model, device=self.device)
        require_saved_model(model, self.fingerprint, f"{self.model}: this component")
        return model

    def __getstate__(self) -> dict[str, Any]:
        """Return what `to_dict` saves: copies and pickles open the model again, and refuse another one."""
        state = {name: value for name, value in self.__dict__.items() if name != "care_model"}
        return {**state, "fingerprint": self.care_model.fingerprint}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, and the fingerprint of the model that they name now."""
        settings: dict[str, Any] = default_to_dict(
            self, model=self.model, device=self.device, fingerprint=self.care_model.fingerprint
        )
        return settings

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Make a component from the result of `to_dict`."""
        return default_from_dict(cls, data)


@component
class CareTextEmbedder(_Component):
    """Embeds a query with the small encoder.

    Example:
        >>> from care_qdrant.integrations.haystack import CareTextEmbedder
        >>> len(CareTextEmbedder().run(text="耳鸣吃什么药")["embedding"])
        384
    """

    def warm_up(self) -> None:
        """Load the query encoder."""
        self.care_model.query_encoder  # noqa: B018  # loaded by being read

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        """Return the vector of a query under ``embedding``."""
        [vector] = self.care_model.encode_query([text]).tolist()
        return {"embedding": vector}


@component
class CareDocumentEmbedder(_Component):
    """Embeds documents with the large encoder: title and text, as ``care-ingest`` does, and no other metadata."""

    def warm_up(self) -> None:
        """Load the document encoder."""
        self.care_model.document_encoder  # noqa: B018  # loaded by being read

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return the documents, each with its vector, under ``documents``."""
        titles = [document.meta.get("title") for document in documents]
        texts = [
            embedded_text(title if isinstance(title, str) else "", document.content or "")
            for title, document in zip(titles, documents, strict=True)
        ]
        try:
            vectors = self.care_model.encode_document(texts).tolist() if texts else []
        except UnusableText as error:
            raise error.named([f"document {document.id!r}" for document in documents]) from error
        pairs = zip(documents, vectors, strict=True)
        return {"documents": [replace(document, embedding=vector) for document, vector in pairs]}
