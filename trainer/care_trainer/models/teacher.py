"""The frozen teacher's vectors, computed once for each text, and mapped from a float16 file in the order of the texts.

Recomputing them would cost Stage I a forward pass of the document encoder in every step; a million vectors of 768
dimensions are 1.5 GB, in the cache and in the file. An interrupted computation resumes from the cache.
"""

import functools
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer

from care_qdrant.encoders.agreement import LEAST_HALF_PRECISION, cosines
from care_qdrant.encoders.local.torch import TorchEncoder
from care_qdrant.errors import EncodingError, InputError, counted, needs_extra
from care_qdrant.types import Vectors
from care_trainer import distributed
from care_trainer.disk import writing
from care_trainer.models.vector_cache import Half, VectorCache, encoder_digest

logger = logging.getLogger(__name__)
Encode = Callable[[list[str]], npt.NDArray[Any]]
PIECE_ROWS = 4096
"""Vectors that a process asks for at once."""
SAMPLED_TEXTS = 8
"""Texts of each part of a bulk job that are encoded again, to know whose vectors it holds."""


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
    report: Callable[[int], None] = lambda _rows: None,
) -> Half:
    """Return the teacher's vectors of texts, computing those that are missing.

    In distributed training each process computes a part; a resumed run may have another number of processes. All of
    them then map one file, even if the cache holds more.
    """
    if jobs and cache is None:
        raise InputError("teacher_jobs: their vectors go into teacher_cache, which is not given")
    file, processes = folder / "vectors.f16", distributed.processes()
    encode: Encode = encoding(teacher, prompt=prompt)
    store = VectorCache(cache or folder, encoder_digest(teacher_folder, prompt), dim)
    with distributed.main_process_first() as is_main:
        if is_main:
            for job in jobs:
                _read_job(job, store, encode, dim)
            folder.mkdir(parents=True, exist_ok=True)
            with writing(f"{file}: {counted(len(texts), 'vector', 'have')} no room"), file.open("wb") as stream:
                # A sparse file that meets a full disk later ends the process by a bus error, without a word.
                os.posix_fallocate(stream.fileno(), 0, len(texts) * dim * 2)
    vectors = np.memmap(file, dtype=np.float16, mode="r+", shape=(len(texts), dim))
    for start in range(0, len(texts), PIECE_ROWS)[processes.process_index :: processes.num_processes]:
        piece = list(texts[start : start + PIECE_ROWS])
        with writing(f"{store.folder}: a vector has no room"):
            vectors[start : start + len(piece)] = store.encode(piece, encode)
        report(len(piece) * processes.num_processes)
    vectors.flush()
    processes.wait_for_everyone()
    return np.memmap(file, dtype=np.float16, mode="r", shape=(len(texts), dim))


def _read_job(url: str, cache: VectorCache, encode: Encode, dim: int) -> None:
    """Read the vectors of a bulk job into a cache, each part once, unless a sample differs from the encoder's own."""
    with needs_extra("bulk", "teacher_jobs"):
        from care_qdrant.bulk.encode import read_part
        from care_qdrant.bulk.job import Job
    job = Job(url)
    manifest, noted = job.manifest(), cache.folder / "jobs.txt"
    if manifest.dim != dim:
        raise InputError(f"teacher_jobs: {url} has {manifest.dim} dimensions, and the run has {dim}")
    read = set(noted.read_text(encoding="utf-8").split()) if noted.exists() else set[str]()
    for receipt in (receipt for receipt in job.receipts().values() if receipt.sha256 not in read):
        for number, chunks in enumerate(read_part(job, manifest, receipt)):
            vectors = {chunk.embedded_text: cast(Vectors, chunk.vector) for chunk in chunks}
            if number == 0:
                sample = list(vectors)[:SAMPLED_TEXTS]
                own = np.asarray(encode(sample), np.float32)
                theirs = np.stack([vectors[text] for text in sample])
                if not (cosine := float(cosines(theirs, own).min())) >= LEAST_HALF_PRECISION:
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
