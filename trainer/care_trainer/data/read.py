"""Training data from JSONL: rows become pairs and texts, filtered, cut and deduplicated."""

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from care_qdrant.corpus import json_lines
from care_qdrant.corpus.json_lines import is_number, parsed
from care_qdrant.errors import InputError
from care_qdrant.types import embedded_text
from care_trainer.config import Data, Side

Row = TypeVar("Row")
Rows = Iterable[tuple[dict[str, Any], str]]
"""Objects of JSONL files, each with ``file:line`` for messages."""

_POSITIVE, _NEGATIVE = ("positive", "pos"), ("negatives", "negative", "neg")
_OWN_KEYS = {*_POSITIVE, *_NEGATIVE, "positives", "query", "sentence1", "sentence2", "score", "text"}
_OWN_KEYS |= {"source", "prompt"}
_NUMBERED = re.compile(r"(?:negatives?|neg)_?(\d+)")
"""Key of one of several negatives, as sentence-transformers' miner writes them: ``negative_1`` to ``negative_n``."""
RETRIEVAL_KEYS = {"corpus": ("id", "text"), "queries": ("id", "text"), "qrels": ("query_id", "document_id", "score")}
"""Keys that each file of a retrieval set must have."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A query, a document that answers it, and documents that do not; or two texts with a score."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()
    source: str = ""
    prompt: str = ""
    """The row's own prompt, read before its query and after the encoder's."""
    score: float | None = None
    """Similarity of the two texts, on any scale; None for a pair that belongs together."""
    other: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The row's other keys, its license among them, as they were read."""

    def row(self) -> dict[str, Any]:
        """Return the pair as the row of a JSONL file, with all that its own row said."""
        texts = (
            {"query": self.query, "positive": self.positive, "negatives": list(self.negatives)}
            if self.score is None
            else {"sentence1": self.query, "sentence2": self.positive, "score": self.score}
        )
        prompt = {"prompt": self.prompt} if self.prompt else {}
        return {**texts, "source": self.source, **prompt, **self.other}


@dataclass(frozen=True, slots=True)
class Text:
    """A single text, for language modelling and alignment."""

    text: str
    source: str = ""


def iter_pairs(data: Data, root: Path) -> Iterator[Pair]:
    """Yield the pairs of a data set, each once, in the order of the files."""
    yield from _distinct(lambda: pairs_in(_rows(data, root), data), pair_digest, data)


def iter_texts(data: Data, root: Path) -> Iterator[Text]:
    """Yield every text of a data set once: texts of pairs, and single texts."""
    sides: tuple[Side, ...] = ("query", "document")
    yield from _distinct(lambda: texts_in(_rows(data, root), data, sides, joined=False), text_digest, data)


def pairs_in(rows: Rows, data: Data) -> Iterator[Pair]:
    """Yield the pairs of rows that a data set keeps."""
    for row, where in rows:
        if is_kept(row, where, data):
            yield from _pairs(row, where, data.max_characters)


def texts_in(rows: Rows, data: Data, sides: Sequence[Side], *, joined: bool) -> Iterator[Text]:
    """Yield the texts of rows that a data set keeps."""
    for row, where in rows:
        if is_kept(row, where, data):
            if joined and ("query" in row or "sentence1" in row):
                pairs = _pairs(row, where, data.max_characters)
                texts = [embedded_text(pair.query, pair.positive) for pair in pairs]
            else:
                texts = _texts(row, where, data.max_characters, sides)
            yield from (Text(text, source_of(row, where)) for text in texts)


def pair_digest(pair: Pair) -> int:
    """Hash what makes two pairs equal: all that training reads of them but the source."""
    scored = [] if pair.score is None else ["", repr(pair.score)]
    return _digest(pair.prompt + pair.query, pair.positive, *pair.negatives, *scored)


def text_digest(text: Text) -> int:
    """Hash what makes two texts equal."""
    return _digest(text.text)


def _distinct(read: Callable[[], Iterator[Row]], digest: Callable[[Row], int], data: Data) -> Iterator[Row]:
    """Yield the first row of each digest, at most ``max_rows``.

    Reads twice rather than hold what was seen: eight bytes a row, where a set of digests would be a hundred.
    """
    kept = distinct(np.fromiter((digest(row) for row in read()), dtype=np.uint64), data)
    yield from compress(read(), kept)


def distinct(digests: npt.NDArray[np.uint64], data: Data) -> npt.NDArray[np.bool_]:
    """Return which rows come for the first time, (rows,), at most ``max_rows``."""
    first = np.sort(np.unique(digests, return_index=True)[1])[: data.max_rows]
    if not len(first):
        raise InputError(
            f"{', '.join(data.files)}: no row is left after the filters "
            f"(licenses_excluded: {', '.join(data.licenses_excluded) or 'none'})"
        )
    kept = np.zeros(len(digests), dtype=bool)
    kept[first] = True
    return kept


@dataclass(frozen=True)
class Columns:
    """A function from lines of a file to the columns of a table.

    It runs in processes of its own, so this module imports little.
    """

    data: Data
    sides: tuple[Side, ...]
    """Sides whose texts become rows of their own; empty where a row is a pair."""
    joined: bool

    def __call__(self, piece: tuple[str, list[tuple[int, str]]]) -> list[list[Any]]:
        """Return texts, prompts, sources, scores, room for the numbers, weights, characters and digests of the rows."""
        rows = parsed(*piece)
        own: list[list[Any]]
        if self.sides:
            texts = list(texts_in(rows, self.data, self.sides, joined=self.joined))
            own = [[text.text, "", text.source, math.nan] for text in texts]
            digests = list(map(text_digest, texts))
        else:
            pairs = list(pairs_in(rows, self.data))
            own = [
                [p.query, p.positive, list(p.negatives), p.prompt, p.source, math.nan if p.score is None else p.score]
                for p in pairs
            ]
            digests = list(map(pair_digest, pairs))
        weights = [self.data.weights.get(source, 1.0) for *_, source, _ in own]
        characters = [
            sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts)
            for *texts, _, _, _ in own
        ]
        return [*map(list, zip(*own, strict=True)), [0] * len(own), weights, characters, digests]


def license_of(row: Mapping[str, Any]) -> str:
    """Return the license of a row, under the key ``license`` or ``licence``; empty when it has neither."""
    return str(row.get("license") or row.get("licence") or "")


def source_of(row: Mapping[str, Any], where: str) -> str:
    """Return the source of a row: its ``source``, or the name of its file."""
    return str(row.get("source") or where.rpartition(":")[0])


def is_kept(row: Mapping[str, Any], where: str, data: Data) -> bool:
    """Return whether a row passes the filters of its data set: its license, and the weight of its source."""
    return license_of(row) not in data.licenses_excluded and data.weights.get(source_of(row, where), 1.0) > 0


def file_hashes(data: Data, root: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a data set by name; a stage records them."""
    return {name: file_hash(existing(root / name)) for name in data.files}


def open_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered, non-empty lines of a plain or gzipped text file."""
    return json_lines.open_lines(existing(path))


def read_rows(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects of a JSONL file, each with ``file:line`` for messages."""
    return parsed(path.name, open_lines(path))


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSONL file; a crash leaves the file complete or unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    partial.replace(path)


def retrieval_file(folder: Path, name: str) -> Path:
    """Return the file of ``corpus``, ``queries`` or ``qrels`` in a retrieval set's folder, plain or gzipped."""
    for path in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"):
        if path.is_file():
            return path
    raise InputError(f"{folder}: holds neither {name}.jsonl nor {name}.jsonl.gz")


def retrieval_rows(folder: Path, name: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the checked rows of ``corpus``, ``queries`` or ``qrels`` in a retrieval set's folder."""
    for row, where in read_rows(retrieval_file(folder, name)):
        if missing := [key for key in RETRIEVAL_KEYS[name] if key not in row]:
            raise InputError(f"{folder.name}/{where}: lacks {', '.join(map(repr, missing))} (keys: {', '.join(row)})")
        if "text" in RETRIEVAL_KEYS[name] and not isinstance(row["text"], str):
            raise InputError(f"{folder.name}/{where}: expected 'text' to be a string, found {row['text']!r}")
        if "score" in RETRIEVAL_KEYS[name] and not is_number(row["score"]):
            raise InputError(f"{folder.name}/{where}: expected 'score' to be a finite number, found {row['score']!r}")
        yield row, where


def _rows(data: Data, root: Path) -> Iterator[tuple[dict[str, Any], str]]:
    for name in data.files:
        yield from read_rows(root / name)


def _pairs(row: Mapping[str, Any], where: str, limit: int | None) -> Iterator[Pair]:
    if "sentence1" in row:
        yield _scored(row, where, limit)
        return
    query, positives, negatives = row.get("query"), _listed(row, _POSITIVE), _negatives(row)
    if not positives or not all(_is_text(text) for text in (query, *positives, *negatives)):
        raise InputError(
            f"{where}: is not a pair (keys: {', '.join(row)}); expected 'query' with 'positive' and 'negatives', "
            "or with 'pos' and 'neg', or 'sentence1', 'sentence2' and 'score', all texts strings that are not empty"
        )
    for positive in positives:
        yield Pair(
            query=str(query)[:limit],
            positive=positive[:limit],
            negatives=tuple(text[:limit] for text in negatives),
            source=source_of(row, where),
            prompt=str(row.get("prompt") or ""),
            other=_others(row),
        )


def _others(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _OWN_KEYS and not _NUMBERED.fullmatch(key)}


def unused_keys(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the keys of rows that training does not read; a license is read by the filter of licenses."""
    return sorted({key for row in rows for key in _others(row)} - {"license", "licence"})


def _scored(row: Mapping[str, Any], where: str, limit: int | None) -> Pair:
    first, second, score = (row.get(key) for key in ("sentence1", "sentence2", "score"))
    if not (_is_text(first) and _is_text(second) and is_number(score)):
        raise InputError(
            f"{where}: is not a pair with a score (keys: {', '.join(row)}); expected 'sentence1' and 'sentence2', "
            "strings that are not empty, and 'score', a finite number"
        )
    prompt = str(row.get("prompt") or "")
    return Pair(
        str(first)[:limit], str(second)[:limit], (), source_of(row, where), prompt, float(str(score)), _others(row)
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _listed(row: Mapping[str, Any], keys: Sequence[str]) -> list[Any]:
    """Return the value of the first of the keys that a row has, as a list."""
    value: Any = next((row[key] for key in keys if row.get(key)), [])
    return value if isinstance(value, list) else [value]


def _negatives(row: Mapping[str, Any]) -> list[Any]:
    """Return the negatives of a row: a list or a single one, then numbered ones in their order."""
    numbered = [(int(match[1]), row[key]) for key in row if (match := _NUMBERED.fullmatch(key)) and row[key]]
    return [*_listed(row, _NEGATIVE), *(text for _, text in sorted(numbered, key=itemgetter(0)))]


def _texts(row: Mapping[str, Any], where: str, limit: int | None, sides: Sequence[Side]) -> list[str]:
    queries, documents = [row.get("query"), row.get("sentence1")], [*_listed(row, _POSITIVE), *_negatives(row)]
    of_side = {"query": queries, "document": [*documents, row.get("sentence2")]}
    candidates = [row.get("text"), *(text for side in sides for text in of_side[side])]
    texts = [text[:limit] for text in candidates if _is_text(text)]
    if not texts:
        raise InputError(f"{where}: holds no text (keys: {', '.join(row)}); expected 'text', 'query' or 'positive'")
    return texts


def existing(path: Path) -> Path:
    """Return the path of a data file."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; set data_root, or pass --set data_root=FOLDER")
    return path


def plain_text(text: str) -> str:
    """Return a text without blanks, by which texts are compared between training and evaluation."""
    return "".join(text.split())


def text_key(text: str) -> int:
    """Hash a text to a signed 64-bit number, by which losses find equal texts."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


def _digest(*parts: str) -> int:
    """Hash texts to 64 bits: among sixty million rows, the odds that two differing ones collide are 1 in 10,000."""
    return int.from_bytes(hashlib.blake2b("\x1f".join(parts).encode(), digest_size=8).digest())


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, computed once for a size and a time of change."""
    stat = path.stat()
    return _sha256(path, stat.st_size, stat.st_mtime_ns)


@functools.cache
def _sha256(path: Path, _size: int, _changed: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
