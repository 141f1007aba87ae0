"""What of a node the document encoder reads: its title and its text, and no other metadata."""

from collections.abc import Sequence
from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode, Node, TextNode, TransformComponent
from typing_extensions import override

TITLE_KEY = "title"


class CareNodeText(TransformComponent):
    """Makes nodes embed as ``care-ingest`` embeds documents: ``"title text"``, without the other metadata.

    LlamaIndex puts ``"key: value"`` lines of all metadata in front of the text by default, and the vectors then differ
    silently from those of the ingestion. `CareEmbedding` does this by itself when it is a transformation of an
    ``IngestionPipeline``; ``VectorStoreIndex`` passes it finished texts, so there this goes into ``transformations``,
    behind what splits documents: ``[SentenceSplitter(), CareNodeText()]``. The metadata stay on the node, for filters
    and for display.
    """

    @classmethod
    @override
    def class_name(cls) -> str:
        return "CareNodeText"

    @override
    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        for node in nodes:
            embed_title_and_text_only(node)
        return nodes


def embed_title_and_text_only(node: BaseNode) -> None:
    """Let a node's embedded text be `care_qdrant.types.embedded_text` of its title and its text.

    LlamaIndex has one template for the embedding model and the language model, so both read the same.
    """
    excluded = sorted(key for key in node.metadata if key != TITLE_KEY)
    node.excluded_embed_metadata_keys = node.excluded_llm_metadata_keys = excluded
    node.metadata_template = "{value}"
    if isinstance(node, Node | TextNode):
        node.text_template = "{metadata_str} {content}"


def embeds_other_metadata(node: BaseNode) -> bool:
    """Return whether more than title and text of a node get embedded."""
    shown = node.get_metadata_str(mode=MetadataMode.EMBED)
    return shown not in ("", str(node.metadata.get(TITLE_KEY, "")))
