"""The result of an earlier run in its CARE folder: the encoder to continue from, and the points that it has seen."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from care_qdrant import Collection
from care_qdrant.contracts.layouts import guess_layout
from care_qdrant.contracts.learned import agreement
from care_qdrant.errors import InputError
from care_qdrant.model.folder import verify_checkpoint
from care_qdrant.types import embedded_text
from care_trainer.learn.reading import LAYOUT_POINTS, Reader, require_documents, sample_ids
from care_trainer.learn.settings import FOLDER, LearnSettings
from care_trainer.learn.token_table import TokenTable

_SEEN = "seen.npy"
_MIN_AGREEMENT = 1.0
"""Least median agreement of vectors with their texts, in standard deviations; those of another model have about 0."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """A query encoder that an earlier run learned."""

    table: TokenTable
    seen: npt.NDArray[np.uint64]
    """Digests of the ids of the points that the run read, sorted."""

    def is_new(self, ids: Sequence[object]) -> npt.NDArray[np.bool_]:
        """Return which points the earlier run did not read, (ids,)."""
        return ~np.isin(_digests(ids), self.seen)

    def fits(self, collection: Collection, vector_name: str, text_field: str | None) -> bool:
        """Return whether vectors are of the model that this encoder was learned from, by a sample of points."""
        ids, dim = [record.id for record in collection.sample(LAYOUT_POINTS)], collection.schema.dense[vector_name].size
        records = list(collection.retrieve(ids, vectors=[vector_name]).values())
        layout = guess_layout([record.payload or {} for record in records], text_field=text_field)
        reader = Reader(layout, vector_name, dim, None)
        reader.add(records)
        pairs = reader.pairs(ids, len(ids))
        made = self.table.encode(list(map(embedded_text, pairs.titles, pairs.texts)))
        if made.shape != pairs.vectors.shape or len(made) < 3:
            return False
        return bool(np.median(agreement(made, pairs.vectors)) >= _MIN_AGREEMENT)


def load_earlier(folder: Path) -> Earlier:
    """Read the encoder and the seen points of an earlier run."""
    verify_checkpoint(folder)
    seen, table = _load_seen(folder), TokenTable.load(folder / "query")
    if table is None:
        raise InputError(
            f"{folder}: is not a table of token vectors, and only tables are updated; learn into a new folder"
        )
    return Earlier(table, seen)


def unseen_fraction(folder: Path, collection: Collection, settings: LearnSettings) -> float:
    """Return the fraction of a collection's sample that the run which wrote a folder has not read, from 0 to 1."""
    seen, ids = _load_seen(folder), sample_ids(collection, settings.sample, settings.seed)
    require_documents(collection, len(ids))
    return float(np.mean(~np.isin(_digests(ids), seen)))


def save_seen(folder: Path, ids: Sequence[object]) -> None:
    """Save which points a run has read, eight bytes each."""
    (folder / FOLDER).mkdir(exist_ok=True)
    path = folder / FOLDER / _SEEN
    with path.with_suffix(".partial").open("wb") as file:
        np.save(file, np.sort(_digests(ids)))
    path.with_suffix(".partial").replace(path)


def _load_seen(folder: Path) -> npt.NDArray[np.uint64]:
    path = folder / FOLDER / _SEEN
    if not path.is_file():
        raise InputError(f"{folder}: was not written by care learn ({FOLDER}/{_SEEN} is missing); learn into a new one")
    try:
        seen: npt.NDArray[np.uint64] = np.load(path)
    except (EOFError, OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); learn into a new folder") from error
    return seen


def _digests(ids: Sequence[object]) -> npt.NDArray[np.uint64]:
    digests = (hashlib.blake2b(str(point_id).encode(), digest_size=8).digest() for point_id in ids)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)
