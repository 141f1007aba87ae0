"""The payload of a point: readable by LlamaIndex's stock Qdrant store, filterable by the user, ours under one key.

Layout::

    <the user's metadata>        top level, filterable
    text, title                  the chunk and the title of its document
    doc_id, document_id, ref_doc_id, _node_type, _node_content     what LlamaIndex reads
    _care: {chunk, chunks, payload, vectors: {vector name: content hash}, stand_ins}

The server parses, logs and stores each part of each point. So values that readers fill in themselves are not written:
the defaults of LlamaIndex's nodes, and ``chunks`` of a document that is one chunk. Points of older versions have them.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]  # missing in typeshed
from typing import Any

from pydantic_core import to_json

from care_qdrant.contracts.stand_in import STAND_INS
from care_qdrant.types import CARE_KEY, Chunk, embedded_text


def _canonical_encoder() -> Callable[[Any], str]:
    """Return the ``encode`` of a `json.JSONEncoder`, as a function that keeps the encoder written in C.

    The class makes one for every call, which takes longer than encoding a short document.
    """
    encoder = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    if c_make_encoder is None:  # not CPython
        return encoder.encode
    encode = c_make_encoder(None, encoder.default, encode_basestring, None, ":", ",", True, False, True)
    return lambda value: "".join(encode(value, 0))


canonical_json = _canonical_encoder()
"""Function that returns a value as JSON: the same text for equal objects, regardless of the order of their keys."""


def content_hash(fingerprint: str, title: str, text: str) -> str:
    """Return the hash of everything that determines a chunk's vector: the model and the text it reads."""
    return _digest([fingerprint, embedded_text(title, text)])


def payload_hash(chunk: Chunk) -> str:
    """Return the hash of everything else that a point holds, so that an edited label is also noticed."""
    document = chunk.document
    return _digest([document.id, document.title, chunk.text, dict(document.metadata), chunk.number, chunk.total])


def chunk_payload(chunk: Chunk, vector_hashes: Mapping[str, str], stand_ins: Sequence[str] = ()) -> dict[str, Any]:
    """Build the payload of a chunk; ``stand_ins`` are the learned encoders that made vectors of it."""
    document = chunk.document
    title = {"title": document.title} if document.title else {}
    return {
        **document.metadata,
        **title,
        "text": chunk.text,
        "doc_id": document.id,
        "document_id": document.id,
        "ref_doc_id": document.id,
        "_node_type": "TextNode",
        "_node_content": _node_content(chunk, title),
        CARE_KEY: {
            "chunk": chunk.number,
            **({"chunks": chunk.total} if chunk.total > 1 else {}),
            "payload": payload_hash(chunk),
            "vectors": dict(vector_hashes),
            **({STAND_INS: list(stand_ins)} if stand_ins else {}),
        },
    }


def node_embedded_texts(payload: Mapping[str, Any]) -> list[str]:
    """Return the texts that LlamaIndex may have embedded for a stored node, apart from the bare text.

    These are the text in the templates of the node, with the metadata that they show, and title and text as ingestion
    and ``CareNodeText`` join them; empty where the payload holds no node.
    """
    try:
        node = json.loads(payload["_node_content"])
        text = str(node.get("text") or node["text_resource"]["text"])
        metadata = dict(node.get("metadata") or {})
        hidden = node.get("excluded_embed_metadata_keys") or ()
        line = node.get("metadata_template") or "{key}: {value}"
        shown = [_filled(line, key=key, value=str(value)) for key, value in metadata.items() if key not in hidden]
        separator = node.get("metadata_separator") or node.get("metadata_seperator") or "\n"
        template = node.get("text_template") or "{metadata_str}\n\n{content}"
        lines = separator.join(shown).strip()
        whole = _filled(template, content=text, metadata_str=lines).strip() if lines else text
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return []
    return [embedded_text(str(metadata.get("title") or ""), text), whole]


_PLACE = re.compile(r"\{\{|\}\}|\{(\w+)\}|[{}]")


def _filled(template: str, **values: str) -> str:
    """Return a template of LlamaIndex with its values; one with a width could make a text of any size.

    Raises:
        KeyError: The template has another place than these values.
    """
    return _PLACE.sub(lambda match: values[match[1]] if match[1] else {"{{": "{", "}}": "}"}[match[0]], template)


def _node_content(chunk: Chunk, title: Mapping[str, str]) -> str:
    """Build the smallest node that LlamaIndex reads with text, metadata and reference to the source document.

    By default LlamaIndex embeds ``"key: value"`` lines of all metadata in front of the text, and its vectors would
    silently differ from ours. Excluding all keys but the title, and the templates, make it read `embedded_text`.
    """
    metadata = {**chunk.document.metadata, **title}
    excluded = sorted(chunk.document.metadata)
    hidden = {"excluded_embed_metadata_keys": excluded, "excluded_llm_metadata_keys": excluded} if excluded else {}
    shown = {"metadata_template": "{value}", "text_template": "{metadata_str} {content}"} if title else {}
    node = {
        "id_": chunk.point_id,
        **({"metadata": metadata} if metadata else {}),
        **hidden,
        **shown,
        "relationships": {"1": {"node_id": chunk.document.id, "node_type": "4"}},
        "text": chunk.text,
    }
    return to_json(node).decode()


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:32]


def stored_hash(payload: Mapping[str, Any], vector_name: str) -> str | None:
    """Return the hash of the text that a vector was made from, None where the point has none."""
    care = payload.get(CARE_KEY)
    hashes = care.get("vectors") if isinstance(care, Mapping) else None
    digest = hashes.get(vector_name) if isinstance(hashes, Mapping) else None
    return digest if isinstance(digest, str) else None
