"""Document vectors that runs share: each encoder encodes a text once, for all runs and stages."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

Half = npt.NDArray[np.float16]
_DIGEST_BYTES = 16
_PIECE_TEXTS = 512
"""Texts encoded between two writes, so what a killed process loses at most."""
_LOCK_SECONDS = 600.0
"""Longest wait for another process that writes, which takes a moment."""


def encoder_digest(folder: Path, prompt: str | None = None) -> str:
    """Return the SHA-256 over all files of an encoder's folder but its model card, and over a prompt.

    None, which is the encoder's own prompt, and the empty one, which is none, differ.
    """
    digest = hashlib.sha256(json.dumps(prompt).encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "README.md"):
        with path.open("rb") as stream:
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


class VectorCache:
    """Vectors of one encoder by text, float16, in a SQLite file that any number of processes share.

    It is not locked while texts are encoded: processes that need the same text at the same time each encode it, and the
    first one's vector is kept.
    """

    def __init__(self, folder: Path, encoder: str, dim: int) -> None:
        self.folder, self.dim = folder / encoder[:16], dim
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._open() as database:
            database.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL)")

    def encode(self, texts: Sequence[str], encode: Callable[[list[str]], npt.NDArray[np.float32]]) -> Half:
        """Return the vectors of texts, encoding those that are missing, each distinct text once."""
        keys = [hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest() for text in texts]
        stored = self._find(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in stored}
        unencoded = list(missing.items())
        for start in range(0, len(unencoded), _PIECE_TEXTS):
            piece = unencoded[start : start + _PIECE_TEXTS]
            vectors = np.asarray(encode([text for _, text in piece]), np.float16)
            rows = [(key, vector.tobytes()) for (key, _), vector in zip(piece, vectors, strict=True)]
            with self._open() as database:
                database.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)
        stored |= self._find(list(missing))
        return np.frombuffer(b"".join(stored[key] for key in keys), np.float16).reshape(-1, self.dim)

    def _find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        vectors: dict[bytes, bytes] = {}
        with self._open() as database:
            for start in range(0, len(keys), _PIECE_TEXTS):
                piece = keys[start : start + _PIECE_TEXTS]
                marks = ",".join("?" * len(piece))
                vectors |= dict(database.execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", piece))
        return vectors

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction, which is written whole or not at all."""
        with closing(sqlite3.connect(self.folder / "vectors.sqlite", timeout=_LOCK_SECONDS)) as database, database:
            yield database
