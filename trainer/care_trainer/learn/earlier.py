"""The result of an earlier run in its CARE folder: the encoder to continue from, and the points that it has seen."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from care_qdrant import Collection
from care_qdrant.encoders.local.torch import no_progress_bars
from care_qdrant.errors import InputError
from care_qdrant.model.folder import verify_checkpoint
from care_qdrant.types import Vectors
from care_trainer.learn.reading import require_documents, sample_ids
from care_trainer.learn.settings import FOLDER, LearnSettings

_SEEN = "seen.npy"


@dataclass(frozen=True, slots=True)
class Earlier:
    """A query encoder that an earlier run learned."""

    encoder: SentenceTransformer
    """Encoder that ends in the learned space, before the normalisation."""
    basis: Vectors | None
    seen: npt.NDArray[np.uint64]
    """Digests of the ids of the points that the run read, sorted."""

    @property
    def table(self) -> StaticEmbedding:
        """The token vectors, (tokens, width), and their tokenizer."""
        table = self.encoder[0]
        assert isinstance(table, StaticEmbedding)
        return table

    def is_new(self, ids: Sequence[object]) -> npt.NDArray[np.bool_]:
        """Return which points the earlier run did not read, (ids,)."""
        return ~np.isin(_digests(ids), self.seen)


@no_progress_bars()
def load_earlier(folder: Path) -> Earlier:
    """Read what an earlier run left."""
    card = verify_checkpoint(folder)
    seen = _load_seen(folder)
    model = SentenceTransformer(str(folder / "query"), device="cpu", local_files_only=True)
    modules = [module for module in model if not isinstance(module, Normalize)]
    if not isinstance(modules[0], StaticEmbedding):
        raise InputError(
            f"{folder}: is a transformer, and only tables of token vectors are updated; learn into a new one"
        )
    basis, last = None, modules[-1]
    if isinstance(last, Dense) and last.linear.bias is None:  # a projection that was trained has a bias
        basis = np.ascontiguousarray(last.linear.weight.detach().numpy().T)
        modules.pop()
    encoder = SentenceTransformer(modules=modules, prompts={"query": card.query.prompt}, device="cpu")
    return Earlier(encoder, basis, seen)


def unseen_fraction(folder: Path, collection: Collection, settings: LearnSettings) -> float:
    """Return the fraction of a collection's sample that the run which wrote a folder has not read, from 0 to 1."""
    seen, ids = _load_seen(folder), sample_ids(collection, settings.sample, settings.seed)
    require_documents(collection, len(ids))
    return float(np.mean(~np.isin(_digests(ids), seen)))


def save_seen(folder: Path, ids: Sequence[object]) -> None:
    """Keep which points a run has read, eight bytes for each."""
    (folder / FOLDER).mkdir(exist_ok=True)
    np.save(folder / FOLDER / _SEEN, np.sort(_digests(ids)))


def _load_seen(folder: Path) -> npt.NDArray[np.uint64]:
    path = folder / FOLDER / _SEEN
    if not path.is_file():
        raise InputError(f"{folder}: was not written by care learn ({FOLDER}/{_SEEN} is missing); learn into a new one")
    seen: npt.NDArray[np.uint64] = np.load(path)
    return seen


def _digests(ids: Sequence[object]) -> npt.NDArray[np.uint64]:
    digests = (hashlib.blake2b(str(one).encode(), digest_size=8).digest() for one in ids)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)
