"""`CareNodeParser`: documents into nodes that the document encoder reads whole."""

import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from llama_index.core.bridge.pydantic import Field, PrivateAttr, SerializeAsAny, field_validator
from llama_index.core.node_parser.interface import NodeParser
from llama_index.core.node_parser.node_utils import IdFuncCallable, build_nodes_from_splits
from llama_index.core.schema import BaseNode, Document, MetadataMode, TextNode
from llama_index.embeddings.care.base import CareEmbedding, embed_title_and_text_only, title_of
from typing_extensions import override

from care_qdrant.corpus.chunking import Span, split
from care_qdrant.errors import InputError
from care_qdrant.types import embedded_text, half_character, is_blank, point_id

logger = logging.getLogger(__name__)

_REMEMBERED = 10_000
"""Fewest documents of earlier calls whose hashes are kept."""


def _id_of_chunk(i: int, doc: BaseNode) -> str:
    """Return the id that ``care-ingest`` gives the chunk: writing a document twice writes it once."""
    return point_id(doc.node_id, i)


def _numbered_from(first: int, id_func: IdFuncCallable, i: int, doc: BaseNode) -> str:
    """Return the id of a chunk where its number does not begin at 0."""
    return id_func(i=first + i, doc=doc)


class CareNodeParser(NodeParser):
    """Cuts documents as ``care-ingest`` does: at sentence ends, into nodes of at most the encoder's tokens.

    Title, prompt and special tokens count, so the encoder cuts off no node; `SentenceSplitter` counts
    the tokens of another model. Nodes embed title and text alone, as `CareNodeText` has it.

    Documents of one call that share an id, such as the pages of a file, get nodes with ids of their own, by their
    order. A document of a later call with the same id is a new text of the first one, and its nodes replace the others,
    as many as it has now: a pipeline with a docstore, or ``update_ref_doc`` of an index, also deletes the rest.

    Example:
        >>> from llama_index.core import Document
        >>> from llama_index.embeddings.care import CareEmbedding, CareNodeParser
        >>> parser = CareNodeParser(embedding=CareEmbedding())
        >>> [node.text for node in parser([Document(text="二甲双胍会引起恶心。")])]
        ['二甲双胍会引起恶心。']
    """

    embedding: SerializeAsAny[CareEmbedding] = Field(description="Its document encoder has to read the nodes whole.")
    id_func: IdFuncCallable = Field(
        default=_id_of_chunk, exclude=True, description="Returns the id of a node from its number and its document."
    )

    _parsed: dict[str, tuple[str, ...]] = PrivateAttr(default_factory=dict)
    """Hashes of the documents of each id, as the last call with that id had them."""
    _has_warned: bool = PrivateAttr(default=False)

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
        made: Counter[str] = Counter()
        for node in nodes:
            title, text = title_of(node), node.get_content(MetadataMode.NONE)
            if half := half_character(title + text):
                raise InputError(
                    f"document {node.node_id!r}: its title or text holds an unpaired surrogate ({half}), which is not "
                    "a character; fix it, for example with text.encode('utf-8', 'replace').decode(), or leave the "
                    "document out"
                )
            fits = counter.count_tokens([embedded_text(title, text)])[0] <= counter.max_tokens
            if not fits and counter.count_tokens([title])[0] > counter.max_tokens // 2:
                raise InputError(
                    f"document {node.node_id!r}: its title {title[:40]!r} is longer than half of what the document "
                    f"encoder reads ({counter.max_tokens} tokens), and leaves no room for the text; shorten the title"
                )
            spans = [] if is_blank(text) else [Span(0, len(text))] if fits else split(text, title, counter)
            parts = [text[span.start : span.end] for span in spans]
            # Pages of a file may share its name as their id: the chunks of all of them are numbered through.
            id_func = partial(_numbered_from, made[node.node_id], self.id_func)
            cut = build_nodes_from_splits(parts, node, id_func=id_func)
            for piece, span in zip(cut, spans, strict=True):
                piece.start_char_idx, piece.end_char_idx = span.start, span.end
            made[node.node_id] += len(cut)
            parsed += cut
        self._warn_of_replaced(nodes)  # behind the checks: LlamaIndex cannot hash a text with half a character
        return parsed

    def _warn_of_replaced(self, documents: Sequence[BaseNode]) -> None:
        """Warn once that nodes of an earlier call will be replaced, by new texts or by pages that share an id."""
        hashes: dict[str, tuple[str, ...]] = {}
        for document in documents:
            hashes[document.node_id] = (*hashes.get(document.node_id, ()), document.hash)
        other = next((name for name, own in hashes.items() if self._parsed.get(name, own) != own), None)
        if other is not None and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "document %r was parsed before with another text or other metadata: its nodes get the same ids, and "
                "replace as many of the earlier ones in a store. If it had more, those stay there: "
                "index.update_ref_doc() or a pipeline with a docstore deletes them first. Pages that share an id "
                "belong in one call, or need ids of their own",
                other,
            )
        self._parsed |= hashes
        if len(self._parsed) > 2 * _REMEMBERED:
            self._parsed = dict(list(self._parsed.items())[-_REMEMBERED:])

    @override
    def _postprocess_parsed_nodes(self, nodes: list[BaseNode], parent_doc_map: dict[str, Document]) -> list[BaseNode]:
        # Of documents that share an id, the map has the last alone, whose metadata all nodes would get.
        shared = {
            node.ref_doc_id
            for node in nodes
            if (source := node.source_node) is not None
            and (parent := parent_doc_map.get(source.node_id)) is not None
            and source.hash != parent.hash
        }
        own = {document_id: parent for document_id, parent in parent_doc_map.items() if document_id not in shared}
        pieces = [node for node in nodes if isinstance(node, TextNode)]
        spans = [(piece.start_char_idx, piece.end_char_idx) for piece in pieces]
        # This adds the metadata, with keys that must not be embedded.
        nodes = super()._postprocess_parsed_nodes(nodes, own)
        # It also searches for each text behind the last match, and takes an earlier copy of a text that is repeated.
        for piece, span in zip(pieces, spans, strict=True):
            piece.start_char_idx, piece.end_char_idx = span
        for node in nodes:
            embed_title_and_text_only(node)
        return nodes
