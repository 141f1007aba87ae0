"""Reference vectors: what ties an ONNX file to the weights under the fingerprint.

ONNX files are another rendering of weights that the fingerprint covers, and are not covered themselves, so that a new
export does not orphan collections. A few vectors that sentence-transformers made of fixed texts are kept in the card
beside a digest of them and of the fingerprint. An encoder is refused where it gives others: hashes alone would accept
the ONNX file of another model together with its hashes.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from care_qdrant.encoders.local.weights import CHECK_FILE, read_json, write_json
from care_qdrant.errors import AlteredModel
from care_qdrant.types import Vectors

REFERENCE_TEXTS = (
    "糖尿病人能吃西瓜吗",
    "What does an HbA1c of 6.5 % mean?",
    "孩子发烧三天，体温 38.5℃，咳嗽有痰，需要吃消炎药吗？",
)
_ADAPTER_MARGIN = 0.02
"""Allowed below a cosine of 1: weights that were rounded to bfloat16 when they were merged, another device."""
COSINE_MARGIN = 0.005
"""Allowed below the lowest cosine that was measured at export: other texts, another CPU."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A text and its vector by sentence-transformers."""

    text: str
    vector: str
    """The bytes of a little-endian float32 array of length dim, as base64."""


def make_references(encode: Callable[[list[str]], Vectors]) -> tuple[Reference, ...]:
    """Encode the reference texts."""
    rows = encode(list(REFERENCE_TEXTS)).astype("<f4")
    return tuple(
        Reference(text, base64.b64encode(row.tobytes()).decode("ascii"))
        for text, row in zip(REFERENCE_TEXTS, rows, strict=True)
        if np.linalg.norm(row) > 1e-3  # a table of Chinese token vectors may have none for English
    )


def references_digest(fingerprint: str, references: Sequence[Reference]) -> str:
    """Return the SHA-256 over a fingerprint and the references that belong to it; empty for no references."""
    if not references:
        return ""
    digest = hashlib.sha256(fingerprint.encode())
    for reference in references:
        digest.update(f"\x1f{reference.text}\x1f{reference.vector}".encode())
    return digest.hexdigest()


def check_references(
    encode: Callable[[list[str]], Vectors], references: Sequence[Reference], file: Path, min_cosine: float
) -> None:
    """Refuse an encoder that gives other vectors than the weights under the fingerprint."""
    if references and not (lowest := _least_cosine(encode, references, file)) >= min_cosine:
        raise AlteredModel(
            f"{file}: gives other vectors than the model's weights (cosine {lowest:.3f}, expected at least "
            f"{min_cosine:.3f}): it was exported from another model. Restore the file, or export the model again"
        )


def keep_check_vectors(encode: Callable[[list[str]], Vectors], folder: Path) -> None:
    """Write what an adapter over its own base makes of the reference texts beside it."""
    write_json(folder / CHECK_FILE, [asdict(reference) for reference in make_references(encode)])


def check_adapter_vectors(encode: Callable[[list[str]], Vectors], adapter: Path) -> None:
    """Refuse an adapter that gives other vectors than those beside it; without such nothing can be checked."""
    if not (adapter / CHECK_FILE).is_file():
        return
    references = [Reference(**kept) for kept in read_json(adapter / CHECK_FILE)]
    if not (lowest := _least_cosine(encode, references, adapter)) >= 1 - _ADAPTER_MARGIN:
        raise AlteredModel(
            f"{adapter}: gives other vectors than those in {CHECK_FILE} (cosine {lowest:.3f}): its base is another "
            "model of the same shape; give the base that it was trained on"
        )


def _least_cosine(encode: Callable[[list[str]], Vectors], references: Sequence[Reference], file: Path) -> float:
    expected = np.stack([np.frombuffer(base64.b64decode(reference.vector), "<f4") for reference in references])
    found = encode([reference.text for reference in references])
    if found.shape != expected.shape:
        raise AlteredModel(f"{file}: gives vectors of shape {found.shape}; the model's are {expected.shape}")
    # Of unit vectors the cosine; of vectors that were cut to less, the length counts, too.
    return float((np.einsum("td,td->t", found, expected) / np.square(expected).sum(axis=1)).min())
