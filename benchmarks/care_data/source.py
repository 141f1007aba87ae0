"""The documents of a live collection, and the questions."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from care_benchmarks.rows import read_jsonl
from qdrant_client import QdrantClient

from care_data.config import Config
from care_data.files import Rows
from care_qdrant import Collection, Document, Hit, open_client
from care_qdrant.console.options import Target
from care_qdrant.contracts.layouts import read_hit
from care_qdrant.errors import COMPLETE, InputError, counted
from care_qdrant.types import embedded_text

ANCHOR = "anchor:"
"""Beginning of the ids of documents that are planted among those to judge; ids of points are numbers or UUIDs."""


@contextmanager
def open_source(config: Config) -> Iterator[QdrantClient]:
    """Open the database of a configuration; an embedded one must exist."""
    source = config.settings.source
    path = config.at(source.path) if source.path else None
    if path is not None and not path.is_dir():
        raise InputError(f"{path}: no such folder; expected an embedded database (source.path)")
    target = Target(path, source.url, os.environ.get("QDRANT_API_KEY"))
    token = COMPLETE.set(lambda words, _model: " ".join([words, *target.options_of(words.split()[1])]))
    try:
        with open_client(path=path, url=source.url, api_key=target.api_key) as client:
            yield client
    finally:
        COMPLETE.reset(token)


@dataclass(frozen=True)
class Texts:
    """The documents of a collection: each point is one, since a point is what a search returns."""

    documents: dict[
        str, Document
    ]  # by document id if one point holds the whole document and the id is no other's, else by point id
    names: dict[str, str]  # document id by point id
    skipped: int  # points without a text

    @cached_property
    def strings(self) -> dict[str, tuple[str, str]]:
        """Return title and text of each document."""
        return {document.id: (document.title, document.text) for document in self.documents.values()}


def read_texts(client: QdrantClient, collection: str) -> Texts:
    """Read the texts of all points, whichever tool wrote them."""
    hits = [read_hit(point) for page in Collection(client, collection).scroll("reading the texts") for point in page]
    filled = [hit for hit in hits if hit.text.strip()]
    if not filled:
        raise InputError(f"collection {collection!r}: none of its {counted(len(hits), 'point')} has a text to judge")
    points, own = Counter(hit.document_id for hit in filled), {hit.point_id for hit in filled}

    def name(hit: Hit) -> str:
        # A document's id may be the id of another point, or look as if it were planted among the documents to judge.
        is_clear = points[hit.document_id] == 1 and hit.document_id not in own
        return hit.document_id if is_clear and not hit.document_id.startswith(ANCHOR) else hit.point_id

    names = {hit.point_id: name(hit) for hit in filled}
    documents = {
        names[hit.point_id]: Document(names[hit.point_id], hit.text, hit.title, dict(hit.metadata)) for hit in filled
    }
    return Texts(documents, names, len(hits) - len(filled))


def read_questions(path: Path) -> Rows:
    """Read questions: ``id``, ``text``, and the other fields of their rows."""
    rows: Rows = []
    seen: dict[str, str] = {}
    for row in read_jsonl(path):
        identity = row.identity("id", "_id")
        if identity in seen:
            raise InputError(f"{row.where}: id {identity!r} was already used in {seen[identity]}")
        seen[identity] = row.where
        rows.append({**row.fields, "id": identity, "text": row.text("text")})
    if not rows:
        raise InputError(f"{path}: is empty; expected one question per line")
    return rows


def read_fields(path: Path, expected: str) -> Iterator[list[str]]:
    """Yield the fields of each line of one of TREC's files."""
    if not path.is_file():
        raise InputError(f"{path}: does not exist; expected lines of: {expected}")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 ({error}); save it as UTF-8") from error
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if len(fields) != len(expected.split()):
            raise InputError(f"{path}:{number}: is {line[:60]!r}; expected: {expected}")
        yield fields


def shown(row: dict[str, object]) -> str:
    """Return the text of a corpus row as judges and encoders see it: title and text."""
    return embedded_text(str(row.get("title") or ""), str(row["text"]))
