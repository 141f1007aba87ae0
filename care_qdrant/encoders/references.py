"""Reference vectors: a few fixed texts, each with the vector that a model's own weights give it.

Any other source of vectors for that model has to give the same ones: an ONNX file, an embeddings server, weights in
half precision, an adapter over its base. They are kept in the card of a CARE folder, in a file for a model without a
card (``care model reference-vectors``), and next to an adapter.

In the card they also tie an ONNX file to the weights under the fingerprint. ONNX files are another rendering of these
weights, and are not covered themselves, so that a new export does not orphan collections. A digest of the fingerprint
and of the vectors is stored with them: hashes alone would accept the ONNX file of another model with its own hashes.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from care_qdrant.encoders.agreement import LEAST_ADAPTER, projections
from care_qdrant.encoders.local.weights import CHECK_FILE, read_json, write_json
from care_qdrant.errors import AlteredModel, InputError, ModelError
from care_qdrant.types import Vectors

REFERENCE_TEXTS = (
    "糖尿病人能吃西瓜吗",
    "What does an HbA1c of 6.5 % mean?",
    "孩子发烧三天，体温 38.5℃，咳嗽有痰，需要吃消炎药吗？",
)
"""A short text, one in English with a number, and a longer one."""

Encode = Callable[[list[str]], Vectors]


@dataclass(frozen=True, slots=True)
class Reference:
    """A text and its vector by the model's own weights."""

    text: str
    vector: str
    """The bytes of a little-endian float32 array of length dim, as base64."""

    @classmethod
    def of(cls, text: str, vector: Iterable[float]) -> "Reference":
        """Return the reference of a text and its vector."""
        return cls(text, base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode("ascii"))

    @property
    def numbers(self) -> Vectors:
        """The vector as an array, (dim,) float32."""
        return np.frombuffer(base64.b64decode(self.vector), "<f4")


def make_references(encode: Encode, texts: Sequence[str] = REFERENCE_TEXTS) -> tuple[Reference, ...]:
    """Encode fixed texts; texts without a vector are left out."""
    return tuple(
        Reference.of(text, row)
        for text, row in zip(texts, encode(list(texts)), strict=True)
        if np.linalg.norm(row) > 1e-3  # a table of Chinese token vectors may have none for English
    )


def save_references(path: Path, fingerprint: str, references: Sequence[Reference]) -> None:
    """Write the reference vectors of a model into a JSON file of numbers."""
    texts = [reference.text for reference in references]
    vectors = [reference.numbers.tolist() for reference in references]
    content = {"fingerprint": fingerprint, "texts": texts, "vectors": vectors}
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def load_references(path: Path, fingerprint: str) -> tuple[Reference, ...]:
    """Read the reference vectors of a model from a file of `save_references`.

    Raises:
        InputError: It is not such a file.
        ModelError: It belongs to another model.
    """
    try:
        content = json.loads(path.read_bytes())
        saved, pairs = str(content["fingerprint"]), zip(content["texts"], content["vectors"], strict=True)
        references = tuple(Reference.of(text, vector) for text, vector in pairs)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: holds no reference vectors; make them with care model reference-vectors ({error})"
        ) from error
    if not references:
        raise InputError(f"{path}: holds no reference vectors; make them with care model reference-vectors")
    if saved != fingerprint:
        raise ModelError(
            f"{path}: the reference vectors are of {saved[:12]}, the model is {fingerprint[:12]}; make them again with "
            "care model reference-vectors"
        )
    return references


def references_digest(fingerprint: str, references: Sequence[Reference]) -> str:
    """Return the SHA-256 over a fingerprint and the references that belong to it; empty for no references."""
    if not references:
        return ""
    digest = hashlib.sha256(fingerprint.encode())
    for reference in references:
        digest.update(f"\x1f{reference.text}\x1f{reference.vector}".encode())
    return digest.hexdigest()


def least_agreement(encode: Encode, references: Sequence[Reference], where: Path) -> float:
    """Return the least cosine of an encoder's vectors with the references; of cut vectors the length counts as well.

    Raises:
        AlteredModel: The encoder gives vectors of another shape.
    """
    expected = np.stack([reference.numbers for reference in references])
    vectors = encode([reference.text for reference in references])
    if vectors.shape != expected.shape:
        raise AlteredModel(f"{where}: gives vectors of shape {vectors.shape}; the model's are {expected.shape}")
    return float(projections(vectors, expected).min())


def check_references(encode: Encode, references: Sequence[Reference], file: Path, least: float) -> None:
    """Refuse an encoder that gives other vectors than the weights under the fingerprint."""
    if references and not (lowest := least_agreement(encode, references, file)) >= least:
        raise AlteredModel(
            f"{file}: gives other vectors than the model's weights (cosine {lowest:.3f}, expected at least "
            f"{least:.3f}): it was exported from another model. Restore the file, or export the model again"
        )


def keep_check_vectors(encode: Encode, folder: Path) -> None:
    """Write the reference vectors of an adapter, over its own base, into its folder."""
    write_json(folder / CHECK_FILE, [asdict(reference) for reference in make_references(encode)])


def check_adapter_vectors(encode: Encode, adapter: Path) -> None:
    """Refuse an adapter that gives other vectors than the references in its folder; without any, check nothing."""
    if not (adapter / CHECK_FILE).is_file():
        return
    references = [Reference(**kept) for kept in read_json(adapter / CHECK_FILE)]
    if not (lowest := least_agreement(encode, references, adapter)) >= LEAST_ADAPTER:
        raise AlteredModel(
            f"{adapter}: gives other vectors than those in {CHECK_FILE} (cosine {lowest:.3f}): its base is another "
            "model of the same shape; give the base that it was trained on"
        )
