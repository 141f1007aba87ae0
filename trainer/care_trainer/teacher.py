"""The frozen teacher's vectors, computed once: a float16 memmap keyed by who made them and for which texts.

Recomputing them in every step costs stage I the document encoder's forward pass, again and again; a million vectors of
768 dimensions are 1.5 GB on disk. An interrupted computation goes on where it stopped.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

from care_qdrant.errors import EncodingError

logger = logging.getLogger(__name__)
Half = npt.NDArray[np.float16]
PIECE_ROWS = 4096


def _silent(_: int) -> None:
    """Report nothing."""


def teacher_vectors(
    teacher: Callable[[], SentenceTransformer],
    teacher_folder: Path,
    texts: Sequence[str],
    folder: Path,
    *,
    dim: int,
    batch_size: int = 64,
    report: Callable[[int], None] = _silent,
) -> Half:
    """Give the teacher's vectors of texts as a read-only memmap (len(texts), dim), computing those that are missing.

    Args:
        teacher: Loads the document encoder; called only when vectors are missing.
        teacher_folder: Where it is saved; its files are part of the key.
        texts: In the order of the rows.
        folder: Where the memmap lives; another teacher's or other texts' vectors there are replaced.
        dim: Of the vectors.
        batch_size: Texts encoded at once.
        report: Called with the number of rows that were just done.

    Raises:
        EncodingError: the teacher gave a vector that is not finite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    progress, file = folder / "progress.json", folder / "vectors.f16"
    key = _key(teacher_folder, texts)
    done = _done(progress, key) if file.exists() else 0
    report(done)
    if done < len(texts):
        _compute(teacher(), texts, file, progress, key, done, dim, batch_size, report)
    return np.memmap(file, dtype=np.float16, mode="r", shape=(len(texts), dim))


def _compute(
    model: SentenceTransformer,
    texts: Sequence[str],
    file: Path,
    progress: Path,
    key: str,
    done: int,
    dim: int,
    batch_size: int,
    report: Callable[[int], None],
) -> None:
    vectors = np.memmap(file, dtype=np.float16, mode="r+" if done else "w+", shape=(len(texts), dim))
    for start in range(done, len(texts), PIECE_ROWS):
        piece = list(texts[start : start + PIECE_ROWS])
        encoded = model.encode_document(piece, batch_size=batch_size, show_progress_bar=False)
        if not np.isfinite(encoded).all():
            raise EncodingError(
                f"the teacher gave a vector that is not finite, in rows {start} to {start + len(piece)}"
            )
        vectors[start : start + len(piece)] = encoded
        vectors.flush()
        _write(progress, {"key": key, "rows": start + len(piece)})
        report(len(piece))


def _key(teacher_folder: Path, texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in teacher_folder.rglob("*") if path.is_file() and path.name != "README.md"):
        with path.open("rb") as stream:
            digest.update(path.relative_to(teacher_folder).as_posix().encode())
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    for text in texts:
        digest.update(text.encode() + b"\x1e")
    return digest.hexdigest()


def _done(progress: Path, key: str) -> int:
    if not progress.exists():
        return 0
    state = json.loads(progress.read_text(encoding="utf-8"))
    return int(state["rows"]) if state["key"] == key else 0


def _write(path: Path, value: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.replace(path)


class TeacherCollator(SentenceTransformerDataCollator):
    """Replaces the ``label`` of each row, its number, by the teacher's vector.

    As lists in the data set the vectors would cost 0.3 s for a batch of 2,560 × 768; from the memmap it is 1 ms.
    """

    def __init__(self, vectors: Half, **options: Any) -> None:
        super().__init__(**options)
        self.vectors = vectors

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Give the tokenised batch with ``label`` (rows, dim) float16."""
        batch = super().__call__(features)
        batch["label"] = torch.from_numpy(self.vectors[batch["label"].numpy()])
        return batch
