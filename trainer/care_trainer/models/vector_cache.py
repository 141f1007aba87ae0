"""Document vectors that runs share: a text is encoded once by the same encoder, whatever run or stage needs it."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock

Half = npt.NDArray[np.float16]
_DIGEST_BYTES = 16
_MOST_RECENT = 1 << 16
"""Keys in a dictionary, of about 170 bytes each; those before them are sorted numbers of 16 bytes."""
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

    A row counts when both files hold the whole of it, so a killed process leaves a valid cache. The lock is held while
    rows are appended, never while texts are encoded: processes that need the same text at the same time each encode it,
    and the first one's vector is kept. The keys are read once, and then only those that were appended since.
    """

    def __init__(self, folder: Path, encoder: str, dim: int) -> None:
        self.folder, self.dim = folder / encoder[:16], dim
        self.folder.mkdir(parents=True, exist_ok=True)
        self._keys, self._vectors = self.folder / "keys.bin", self.folder / "vectors.f16"
        self._known = 0
        self._recent: dict[bytes, int] = {}
        self._heads = np.zeros(0, np.uint64)
        """First halves of the other keys, sorted; the second halves stay in the file, which all processes map."""
        self._order = np.zeros(0, np.int64)
        """Row of each of them."""

    def encode(self, texts: Sequence[str], encode: Callable[[list[str]], npt.NDArray[np.float32]]) -> Half:
        """Return the vectors of texts, encoding those that are missing, each distinct text once."""
        digests = [hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest() for text in texts]
        self._read_new()
        there = self._find(digests) >= 0
        missing = {key: text for key, text, known in zip(digests, texts, there, strict=True) if not known}
        wanted = list(missing.items())
        for start in range(0, len(wanted), _PIECE_TEXTS):
            piece = wanted[start : start + _PIECE_TEXTS]
            self._append([key for key, _ in piece], encode([text for _, text in piece]))
        vectors = np.memmap(self._vectors, np.float16, "r", shape=(self._known, self.dim))
        return np.asarray(vectors[self._find(digests)])

    def _find(self, digests: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """Return the row of each key, -1 for one that is not there."""
        rows = np.full(len(digests), -1, np.int64)
        if len(self._heads) and digests:
            asked = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
            at = np.minimum(np.searchsorted(self._heads, asked[:, 0]), len(self._heads) - 1)
            keys = np.memmap(self._keys, "<u8", "r", shape=(self._known, 2))
            rows = np.where((keys[self._order[at]] == asked).all(axis=1), self._order[at], -1)
        for number, key in enumerate(digests):
            rows[number] = self._recent.get(key, rows[number])
        return rows

    def _whole_rows(self) -> int:
        sizes = (self._keys, _DIGEST_BYTES), (self._vectors, 2 * self.dim)
        return min(path.stat().st_size // size if path.exists() else 0 for path, size in sizes)

    def _read_new(self) -> None:
        """Read the keys of rows that were appended since the last time."""
        known, rows = self._known, self._whole_rows()
        if rows <= known:
            return
        self._known = rows
        if rows - known + len(self._recent) > _MOST_RECENT:
            heads = np.memmap(self._keys, "<u8", "r", shape=(rows, 2))[:, 0]
            self._order = np.argsort(heads)
            self._heads = heads[self._order]
            self._recent.clear()
            return
        with self._keys.open("rb") as stream:
            stream.seek(known * _DIGEST_BYTES)
            data = stream.read((rows - known) * _DIGEST_BYTES)
        keys = (data[at : at + _DIGEST_BYTES] for at in range(0, len(data), _DIGEST_BYTES))
        self._recent.update(zip(keys, range(known, rows), strict=True))

    def _append(self, keys: Sequence[bytes], vectors: npt.NDArray[np.float32]) -> None:
        """Append the rows that no other process has appended meanwhile, after what a killed one left half written."""
        with FileLock(self.folder / "lock"):
            self._read_new()
            new = np.flatnonzero(self._find(keys) < 0)
            rows = self._known
            for path, size, data in (
                (self._vectors, 2 * self.dim, vectors[new].astype(np.float16).tobytes()),
                (self._keys, _DIGEST_BYTES, b"".join(keys[at] for at in new.tolist())),
            ):
                path.touch()
                with path.open("r+b") as stream:
                    stream.truncate(rows * size)
                    stream.seek(rows * size)
                    stream.write(data)
            self._read_new()
