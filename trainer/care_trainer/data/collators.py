"""Collators: rows to tokenised batches, with prompts, crops, newly drawn negatives or a teacher's stored vectors."""

import math
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from torch import Tensor

from care_trainer.data.read import text_key
from care_trainer.data.table import Documents

SHORTEST_CROP, LONGEST_CROP = 6, 36
"""Shortest and longest span that is cut out of a document, in characters."""
SHORTEST_REST = 12
"""Characters that a crop must leave; a shorter document is not cropped."""

Row = dict[str, Any]
Stored = npt.NDArray[np.floating]
Prompts = Mapping[str, tuple[str, str]]
"""Prompts of queries and of documents, by source."""


class PairCollator(SentenceTransformerDataCollator):
    """Tokenises rows of a table: draws new negatives in each epoch, crops, and puts prompts before the texts.

    Each column gets the ``keys`` of its texts without their prompts, by which a loss finds equal ones.
    """

    def __init__(
        self,
        crop: float = 0.0,
        *,
        negatives: int = 0,
        seed: int = 0,
        prompts: Mapping[str, str] | None = None,
        tasks: Prompts | None = None,
        **options: Any,
    ) -> None:
        # With tasks the prompts of one column differ by row, so they are put before the texts here.
        super().__init__(prompts={} if tasks else dict(prompts or {}), **options)
        self.crop, self.negatives, self.seed, self.epoch = crop, negatives, seed, 0
        self.column_prompts, self.tasks = prompts if tasks and prompts else {}, tasks or {}

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, from which the negatives are drawn."""
        self.epoch = epoch

    def __call__(self, features: list[Row]) -> Row:
        """Return the tokenised batch; the crops depend on its rows alone, so that a resumed run draws them again."""
        texts = [self._texts(row) for row in features]
        if self.crop:
            draw = random.Random(zlib.crc32("".join(row["query"] for row in texts).encode()))
            texts = [_cropped(row, draw) if draw.random() < self.crop else row for row in texts]
        batch: Row = super().__call__([self._prompted(*both) for both in zip(features, texts, strict=True)])
        batch |= {f"{name}_keys": torch.tensor([text_key(row[name]) for row in texts]) for name in texts[0]}
        return batch | self._labels(features)

    def _texts(self, row: Row) -> Row:
        """Return the text columns of a row, the negatives that were drawn each in one of its own."""
        texts: Row = {name: row[name] for name in ("text", "query", "positive") if name in row}
        if not self.negatives or "negatives" not in row or _is_scored(row):
            return texts
        chosen = [row["negatives"][at] for at in self._drawn(row["label"], len(row["negatives"]))]
        chosen += [row["positive"]] * (self.negatives - len(chosen))  # a column is a rectangle; the loss masks these
        return texts | {f"negative_{number}": text for number, text in enumerate(chosen, start=1)}

    def _drawn(self, row: int, there: int) -> Sequence[int]:
        """Return which of its negatives a row has in this epoch; seed, epoch and row decide."""
        if there <= self.negatives:
            return range(there)
        generator = np.random.default_rng([self.seed, self.epoch, row])
        drawn: list[int] = generator.choice(there, self.negatives, replace=False).tolist()
        return drawn

    def _prompted(self, row: Row, texts: Row) -> Row:
        task = self.tasks.get(row.get("source", ""))
        before = {
            name: self.column_prompts.get(name, "") if task is None else task[name not in ("query", "text")]
            for name in texts
        }
        own = {"query": row.get("prompt") or ""}
        return {name: before[name] + own.get(name, "") + text for name, text in texts.items()}

    def _labels(self, features: list[Row]) -> dict[str, Tensor]:
        """Return the labels of a batch: the scores of its pairs, where they have one."""
        scored = any(_is_scored(row) for row in features)
        return {"label": torch.tensor([row["score"] for row in features])} if scored else {}


def _is_scored(row: Row) -> bool:
    return not math.isnan(row.get("score", math.nan))


class TeacherCollator(PairCollator):
    """Adds a teacher's stored vectors of the rows as ``label``.

    As lists in the data set the vectors would cost 0.3 s for a batch of 2,560 × 768; from the memmap it is 1 ms.
    """

    def __init__(self, *vectors: Stored, documents: tuple[Documents, Stored] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.vectors, self.documents = vectors, documents

    def _labels(self, features: list[Row]) -> dict[str, Tensor]:
        rows = [row["label"] for row in features]
        labels = [vectors[rows] for vectors in self.vectors]
        keys: dict[str, Tensor] = {}
        if self.documents is not None:
            documents, vectors = self.documents
            numbers = np.array([self._numbers(documents, row) for row in rows])
            labels += [vectors[column] for column in numbers.T]
            keys = {"query_label_keys": torch.from_numpy(documents.keys[numbers])}
        label = labels[0] if len(labels) == 1 else np.stack(labels, axis=1)
        return {"label": torch.from_numpy(np.array(label)), **keys}

    def _numbers(self, documents: Documents, row: int) -> list[int]:
        """Return the numbers of a row's documents: the positive, then as many negatives as each row has."""
        positive, *others = documents.of_row(row).tolist()
        chosen = [others[at] for at in self._drawn(row, len(others))] if self.negatives else []
        return [positive, *chosen, *[positive] * (self.negatives - len(chosen))]


def _cropped(row: Row, draw: random.Random) -> Row:
    parts = crop(row["positive"], draw)
    return row if parts is None else {**row, "query": parts[0], "positive": parts[1]}


def crop(text: str, draw: random.Random) -> tuple[str, str] | None:
    """Cut a span out of a text.

    Half of the time the span stays in the rest, so that shared words count as well.
    """
    if len(text) < SHORTEST_CROP + SHORTEST_REST:
        return None
    length = draw.randint(SHORTEST_CROP, min(LONGEST_CROP, len(text) - SHORTEST_REST))
    start = draw.randint(0, len(text) - length)
    span = text[start : start + length]
    return span, text if draw.random() < 0.5 else text[:start] + text[start + length :]
