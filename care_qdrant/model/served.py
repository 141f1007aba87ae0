"""A pair whose documents are encoded by embeddings servers, which have to give the pair's own vectors."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer

from care_qdrant.encoders.server import BATCH_TOKENS, PATIENCE_SECONDS, ReferenceVectors, Sent, ServerEncoder
from care_qdrant.errors import InputError, ModelError, redact
from care_qdrant.model.pair import CareModel

logger = logging.getLogger(__name__)


@contextmanager
def served_documents(
    model: CareModel,
    tokenizer_file: Path,
    endpoints: Sequence[str],
    name: str,
    reference: ReferenceVectors,
    *,
    sent: Sent = "tokens",
    batch_tokens: int = BATCH_TOKENS,
    api_key: str | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Iterator[CareModel]:
    """Yield the pair with its documents encoded by servers that have passed the reference check.

    Args:
        model: The pair; its own document encoder is not loaded.
        tokenizer_file: Tokenizer of its document encoder.
        endpoints: Base URLs, as ``http://localhost:8000/v1``.
        name: Name of the model on the servers.
        reference: Vectors that each server must reproduce.
        sent: Input format.
        batch_tokens: Tokens per request.
        api_key: Bearer token.
        patience_seconds: Longest time without an answer of any server.

    Raises:
        InputError: The model is not a pair.
        ModelError: The reference vectors are of another pair, or all servers return other vectors.
    """
    if model.card is None:
        raise InputError(f"{model.name}: only a pair can have its documents encoded by a server")
    if reference.fingerprint != model.fingerprint:
        raise ModelError(
            f"the reference vectors are of {reference.fingerprint[:12]}, the model is {model.fingerprint[:12]}; "
            "make them again with care-bench reference-vectors"
        )
    side = model.card.document
    encoder = ServerEncoder(
        endpoints,
        name,
        Tokenizer.from_file(str(tokenizer_file)),
        reference,
        dim=model.dim,
        max_tokens=side.max_tokens,
        prompt=side.prompt,
        is_cut=model.geometry == "cut",
        sent=sent,
        batch_tokens=batch_tokens,
        api_key=api_key,
        patience_seconds=patience_seconds,
    )
    try:
        where = redact(", ".join(endpoints))
        logger.info("%s: reference vectors agree, smallest cosine %.5f", where, encoder.check())
        yield CareModel(
            name=model.name,
            dim=model.dim,
            fingerprint=model.fingerprint,
            temperature=model.temperature,
            geometry=model.geometry,
            load_query_encoder=lambda: model.query_encoder,
            load_document_encoder=lambda: encoder,
            card=model.card,
        )
        logger.info("%s: %s", where, encoder.usage)
    finally:
        encoder.close()
