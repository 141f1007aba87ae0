"""The frozen teacher's vectors, computed once: a float16 memmap keyed by the encoder and the texts.

Recomputing them would cost Stage I a forward pass of the document encoder in every step; a million vectors of 768
dimensions are 1.5 GB on disk. An interrupted computation goes on where it stopped.
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
from sentence_transformers import SentenceTransformer

from care_qdrant.encoders.torch import TorchEncoder
from care_qdrant.errors import EncodingError, InputError, needs_extra
from care_qdrant.types import Vectors
from care_trainer import distributed
from care_trainer.disk import writing
from care_trainer.models.vector_cache import Half, VectorCache, encoder_digest

logger = logging.getLogger(__name__)
Encode = Callable[[list[str]], npt.NDArray[Any]]
PIECE_ROWS = 4096
"""Vectors computed between two records of what is done."""
SAMPLED_TEXTS = 8
"""Texts of each part of a bulk job that are encoded again, to know whose vectors it holds."""
LEAST_COSINE = 0.999
"""Of a vector in float16 that was computed on another device to the encoder's own."""


def _silent(_: int) -> None:
    """Report nothing."""


def teacher_vectors(
    teacher: Callable[[], SentenceTransformer],
    teacher_folder: Path,
    texts: Sequence[str],
    folder: Path,
    *,
    dim: int,
    prompt: str | None = None,
    cache: Path | None = None,
    jobs: Sequence[str] = (),
    report: Callable[[int], None] = _silent,
) -> Half:
    """Return the teacher's vectors of texts, computing those that are missing.

    In distributed training each process computes a part; a resumed run may have another number of processes.
    """
    if jobs and cache is None:
        raise InputError("teacher_jobs: their vectors go into teacher_cache, which is not given")
    encoder = encoder_digest(teacher_folder, prompt)
    file, processes = folder / "vectors.f16", distributed.processes()
    encode: Encode = encoding(teacher, prompt=prompt)
    shared = None if cache is None else VectorCache(cache, encoder, dim)
    with distributed.main_process_first() as is_main:
        if is_main:
            _prepare(folder, file, [_key(encoder, texts), PIECE_ROWS], len(texts), dim)
            if shared is not None:
                for job in jobs:
                    _read_job(job, shared, encode, dim)
        done = _done(folder)
    processes.wait_for_everyone()  # all have read what is done before anyone does more
    pieces = range(0, len(texts), PIECE_ROWS)
    missing = [start for start in pieces if start not in done]
    report(min(len(texts), len(done) * PIECE_ROWS))
    mine = missing[processes.process_index :: processes.num_processes]
    if mine:
        if shared is not None:
            encode = functools.partial(shared.encode, encode=encode)
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


def _read_job(url: str, cache: VectorCache, encode: Encode, dim: int) -> None:
    """Read the vectors of a bulk job into a cache, each part once, unless a sample differs from the encoder's own."""
    with needs_extra("bulk", "teacher_jobs"):
        from care_qdrant.bulk.encode import read_part
        from care_qdrant.bulk.work import Work
    work = Work(url)
    manifest, noted = work.manifest(), cache.folder / "jobs.txt"
    if manifest.dim != dim:
        raise InputError(f"teacher_jobs: {url} has {manifest.dim} dimensions, and the run has {dim}")
    read = set(noted.read_text(encoding="utf-8").split()) if noted.exists() else set[str]()
    for receipt in (each for each in work.receipts().values() if each.sha256 not in read):
        for number, part in enumerate(read_part(work, manifest, receipt)):
            vectors = {chunk.embedded_text: vector for chunk, vector in zip(part.chunks, part.vectors, strict=True)}
            if number == 0:
                sample = list(vectors)[:SAMPLED_TEXTS]
                own = np.asarray(encode(sample), np.float32)
                theirs = np.stack([vectors[text] for text in sample])
                norms = np.linalg.norm(own, axis=1) * np.linalg.norm(theirs, axis=1)
                if (cosine := float(((own * theirs).sum(axis=1) / norms).min())) < LEAST_COSINE:
                    logger.warning(
                        "%s: not used, since unit %s has other vectors than the encoder of this stage gives "
                        "(cosine %.3f): another model, prompt or pooling",
                        url,
                        receipt.unit,
                        cosine,
                    )
                    return
            cache.encode(list(vectors), lambda missing: np.stack([vectors[text] for text in missing]))  # noqa: B023
        with noted.open("a", encoding="utf-8") as lines:
            lines.write(f"{receipt.sha256}\n")


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
    teacher: Callable[[], SentenceTransformer], *, prompt: str | None = None
) -> Callable[[list[str]], Vectors]:
    """Return a function that encodes documents, in batches of tokens; it loads the encoder on its first call."""
    load = functools.cache(lambda: TorchEncoder(teacher().eval(), "document", prompt=prompt))

    def encode(texts: list[str]) -> Vectors:
        vectors = load().forward(texts)
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
    """Return the first rows of the pieces that any process has finished."""
    return {start for path in folder.glob("done.*.json") for start in _read(path)}


def _read(path: Path) -> list[Any]:
    found: list[Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return found


def _write(path: Path, value: list[Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.replace(path)
