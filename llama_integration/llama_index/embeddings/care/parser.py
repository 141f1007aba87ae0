"""`CareNodeParser`: documents into nodes that the document encoder reads whole."""

from collections.abc import Sequence
from typing import Any

from llama_index.core.bridge.pydantic import Field, SerializeAsAny, field_validator
from llama_index.core.node_parser.interface import NodeParser
from llama_index.core.node_parser.node_utils import IdFuncCallable, build_nodes_from_splits
from llama_index.core.schema import BaseNode, Document, MetadataMode
from llama_index.embeddings.care.base import TITLE_KEY, CareEmbedding, embed_title_and_text_only
from typing_extensions import override

from care_qdrant.corpus.chunking import split
from care_qdrant.errors import InputError
from care_qdrant.types import half_character, point_id


def _id_of_chunk(i: int, doc: BaseNode) -> str:
    """Return the id that ``care-ingest`` gives the chunk: writing a document twice writes it once."""
    return point_id(doc.node_id, i)


class CareNodeParser(NodeParser):
    """Cuts documents as ``care-ingest`` does: at sentence ends, into nodes of at most the encoder's tokens.

    Title, prompt and special tokens are counted, too, so no node is cut off by the encoder; `SentenceSplitter` counts
    the tokens of another model. Nodes embed title and text alone, as `CareNodeText` has it.

    Example:
        >>> from llama_index.core import Document
        >>> from llama_index.embeddings.care import CareEmbedding, CareNodeParser
        >>> parser = CareNodeParser(embedding=CareEmbedding())
        >>> [node.text for node in parser([Document(text="二甲双胍会引起恶心。")])]
        ['二甲双胍会引起恶心。']
    """

    embedding: SerializeAsAny[CareEmbedding] = Field(description="Whose document encoder has to read the nodes whole.")
    id_func: IdFuncCallable = Field(
        default=_id_of_chunk, exclude=True, description="Id of a node, of its number and its document."
    )

    @field_validator("embedding", mode="before")
    @classmethod
    def _read_saved(cls, embedding: object) -> object:
        return CareEmbedding.from_dict(embedding) if isinstance(embedding, dict) else embedding

    @classmethod
    @override
    def class_name(cls) -> str:
        return "CareNodeParser"

    @override
    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> list[BaseNode]:
        counter = self.embedding.document_tokenizer
        parsed: list[BaseNode] = []
        for node in nodes:
            title, text = str(node.metadata.get(TITLE_KEY) or ""), node.get_content(MetadataMode.NONE)
            if half := half_character(title + text):
                raise InputError(
                    f"document {node.node_id!r}: its title or text holds half a surrogate pair ({half}), which is no "
                    "character: mend it, as with text.encode('utf-8', 'replace').decode(), or leave the document out"
                )
            if counter.count_tokens([title])[0] > counter.max_tokens // 2:
                raise InputError(
                    f"document {node.node_id!r}: its title {title[:40]!r} is longer than half of what the document "
                    f"encoder reads ({counter.max_tokens} tokens), and leaves no room for the text; shorten the title"
                )
            spans = split(text, title, counter) if text.strip() else []
            parts = [text[span.start : span.end] for span in spans]
            parsed += build_nodes_from_splits(parts, node, id_func=self.id_func)
        return parsed

    @override
    def _postprocess_parsed_nodes(self, nodes: list[BaseNode], parent_doc_map: dict[str, Document]) -> list[BaseNode]:
        # The metadata come here, and with them what must not be embedded.
        nodes = super()._postprocess_parsed_nodes(nodes, parent_doc_map)
        for node in nodes:
            embed_title_and_text_only(node)
        return nodes
