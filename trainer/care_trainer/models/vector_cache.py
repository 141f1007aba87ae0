"""Document vectors that runs share: a text is encoded once by the same encoder, whatever run or stage needs it."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock

Half = npt.NDArray[np.float16]
_DIGEST_BYTES = 16
_PIECE_TEXTS = 512
"""Texts encoded between two writes, so what a killed process loses at most."""


def encoder_digest(folder: Path, prompt: str | None = None) -> str:
    """Return the SHA-256 over all files of an encoder's folder but its model card, and over a prompt."""
    digest = hashlib.sha256(b"" if prompt is None else prompt.encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "README.md"):
        with path.open("rb") as stream:
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


class VectorCache:
    """Vectors of one encoder by text, float16, in two files that only grow.

    A row counts when both files hold the whole of it, so a killed process leaves a valid cache. Processes take turns:
    one that needs what another is computing waits, and then finds it.

    Args:
        folder: Folder of all caches; each encoder has its own below.
        encoder: Digest of the encoder, see `encoder_digest`.
        dim: Dimensions of the vectors.
    """

    def __init__(self, folder: Path, encoder: str, dim: int) -> None:
        self.folder, self.dim = folder / encoder[:16], dim
        self.folder.mkdir(parents=True, exist_ok=True)

    def encode(self, texts: Sequence[str], encode: Callable[[list[str]], npt.NDArray[np.float32]]) -> Half:
        """Return the vectors of texts, encoding those that are missing, each distinct text once.

        Args:
            texts: Texts in any order.
            encode: Returns the vectors (len(texts), dim) of missing texts.

        Returns:
            (len(texts), dim) float16.
        """
        digests = [hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest() for text in texts]
        with FileLock(self.folder / "lock"):
            rows = self._rows()
            missing = {key: text for key, text in zip(digests, texts, strict=True) if key not in rows}
            wanted = list(missing.items())
            for start in range(0, len(wanted), _PIECE_TEXTS):
                piece = wanted[start : start + _PIECE_TEXTS]
                self._append([key for key, _ in piece], encode([text for _, text in piece]))
            rows = self._rows() if wanted else rows
            vectors = np.memmap(self.folder / "vectors.f16", np.float16, "r", shape=(len(rows), self.dim))
            return np.asarray(vectors[[rows[key] for key in digests]])

    def _rows(self) -> dict[bytes, int]:
        """Return digest → row, and cut off what a killed process left half written."""
        keys, vectors = self.folder / "keys.bin", self.folder / "vectors.f16"
        for path in (keys, vectors):
            path.touch()
        rows = min(keys.stat().st_size // _DIGEST_BYTES, vectors.stat().st_size // (2 * self.dim))
        for path, size in ((keys, _DIGEST_BYTES), (vectors, 2 * self.dim)):
            with path.open("r+b") as stream:
                stream.truncate(rows * size)
        data = keys.read_bytes()
        return {data[row * _DIGEST_BYTES : (row + 1) * _DIGEST_BYTES]: row for row in range(rows)}

    def _append(self, keys: Sequence[bytes], vectors: npt.NDArray[np.float32]) -> None:
        with (self.folder / "vectors.f16").open("ab") as stream:
            stream.write(vectors.astype(np.float16).tobytes())
        with (self.folder / "keys.bin").open("ab") as stream:
            stream.write(b"".join(keys))
