"""The frozen teacher's vectors, computed once: a float16 memmap keyed by who made them and for which texts.

Recomputing them in every step costs stage I the document encoder's forward pass, again and again; a million vectors of
768 dimensions are 1.5 GB on disk. An interrupted computation goes on where it stopped.
"""

import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

from care_qdrant.errors import EncodingError
from care_qdrant.types import Vectors
from care_trainer import distributed
from care_trainer.disk import writing
from care_trainer.vectors import Half, VectorCache, encoder_digest

logger = logging.getLogger(__name__)
Encode = Callable[[list[str]], npt.NDArray[Any]]
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
    prompt: str | None = None,
    cache: Path | None = None,
    report: Callable[[int], None] = _silent,
) -> Half:
    """Give the teacher's vectors of texts as a read-only memmap (len(texts), dim), computing those that are missing.

    In distributed training each process computes its share of what is missing; any number of processes can go on.

    Args:
        teacher: Loads the document encoder; called only when vectors are missing.
        teacher_folder: Where it is saved; its files are part of the key.
        texts: In the order of the rows.
        folder: Where the memmap lives; another teacher's or other texts' vectors there are replaced.
        dim: Of the vectors.
        batch_size: Texts encoded at once.
        prompt: Read before each text; None is the teacher's document prompt.
        cache: Folder of vectors that runs share, see `VectorCache`; None computes them for this run alone.
        report: Called with the number of rows that were just done, by all processes together.

    Raises:
        EncodingError: the teacher gave a vector that is not finite.
    """
    encoder = encoder_digest(teacher_folder, prompt)
    file, processes = folder / "vectors.f16", distributed.processes()
    with distributed.main_process_first() as is_main:
        if is_main:
            _prepare(folder, file, [_key(encoder, texts), PIECE_ROWS], len(texts), dim)
        done = _done(folder)
    processes.wait_for_everyone()  # all have read what is done before anyone does more
    pieces = range(0, len(texts), PIECE_ROWS)
    missing = [start for start in pieces if start not in done]
    report(min(len(texts), len(done) * PIECE_ROWS))
    mine = missing[processes.process_index :: processes.num_processes]
    if mine:
        encode: Encode = encoding(teacher, batch_size=batch_size, prompt=prompt)
        if cache is not None:
            encode = functools.partial(VectorCache(cache, encoder, dim).encode, encode=encode)
        vectors = np.memmap(file, dtype=np.float16, mode="r+", shape=(len(texts), dim))
        own = folder / f"done.{processes.process_index}.json"
        finished = _read(own)
        for start in mine:
            piece = list(texts[start : start + PIECE_ROWS])
            vectors[start : start + len(piece)] = encode(piece)
            vectors.flush()
            finished.append(start)
            _write(own, finished)
            report(len(piece) * processes.num_processes)
    processes.wait_for_everyone()
    return np.memmap(file, dtype=np.float16, mode="r", shape=(len(texts), dim))


def _prepare(folder: Path, file: Path, key: list[Any], rows: int, dim: int) -> None:
    """Keep what is there when it has the same key, else start with an empty file."""
    if _read(folder / "key.json") == key and file.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with writing(f"{file}: {rows:,} vectors have no room"), file.open("wb") as stream:
        # A sparse file that meets a full disk later ends the process by a bus error, without a word.
        os.posix_fallocate(stream.fileno(), 0, rows * dim * 2)
    _write(folder / "key.json", key)


def encoding(
    teacher: Callable[[], SentenceTransformer], *, batch_size: int = 64, prompt: str | None = None
) -> Callable[[list[str]], Vectors]:
    """Give what encodes texts as a document encoder does; it is loaded when it is called first.

    Args:
        teacher: Loads it.
        batch_size: Texts encoded at once.
        prompt: Read before each text; None is its document prompt.

    What it gives raises `EncodingError` where a vector is not finite.
    """
    load = functools.cache(teacher)

    def encode(texts: list[str]) -> Vectors:
        vectors: Vectors = load().encode_document(texts, prompt=prompt, batch_size=batch_size, show_progress_bar=False)
        if not np.isfinite(vectors).all():
            raise EncodingError("the teacher gave a vector that is not finite")
        return vectors

    return encode


def _key(encoder: str, texts: Sequence[str]) -> str:
    digest = hashlib.sha256(encoder.encode())
    for text in texts:
        digest.update(text.encode() + b"\x1e")
    return digest.hexdigest()


def _done(folder: Path) -> set[int]:
    """Give the first rows of the pieces that any process has finished."""
    return {start for path in folder.glob("done.*.json") for start in _read(path)}


def _read(path: Path) -> list[Any]:
    found: list[Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return found


def _write(path: Path, value: list[Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.replace(path)


class TeacherCollator(SentenceTransformerDataCollator):
    """Replaces the ``label`` of each row, its number, by the teacher's vector.

    As lists in the data set the vectors would cost 0.3 s for a batch of 2,560 × 768; from the memmap it is 1 ms.

    Args:
        vectors: Of the rows; of several columns, as many.
        options: Of sentence-transformers' collator.
    """

    def __init__(self, *vectors: Half, **options: Any) -> None:
        super().__init__(**options)
        self.vectors = vectors

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Give the tokenised batch with ``label`` (rows, dim), or (rows, columns, dim) of several, float16."""
        batch = super().__call__(features)
        found = [torch.from_numpy(vectors[batch["label"].numpy()]) for vectors in self.vectors]
        batch["label"] = found[0] if len(found) == 1 else torch.stack(found, dim=1)
        return batch
