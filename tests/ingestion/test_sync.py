import gzip
import io
import json
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.errors import InputError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings, Shard
from care_qdrant.progress import Progress
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import Document
from tests.ingestion.conftest import WriteCorpus, short_rows, stored_texts
from tests.tiny import HashModel, medical_texts

SYNC = IngestSettings(sync=True)
ANY_SHARE = IngestSettings(sync=True, max_delete_fraction=1)


def test_documents_that_are_gone_are_deleted_with_all_their_chunks(
    qdrant: QdrantClient, write_corpus: WriteCorpus
) -> None:
    rows = [{"id": f"d{n}", "text": text} for n, text in enumerate(medical_texts(60))]
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    report = ingest(write_corpus(rows[5:]), HashModel(), qdrant, "corpus", settings=SYNC)
    assert report.deleted >= 5
    assert report.points == report.chunks == qdrant.count("corpus").count
    assert stored_texts(qdrant).keys() == {row["id"] for row in rows[5:]}


def test_without_the_flag_nothing_is_deleted(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    rows = short_rows(20)
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    assert ingest(write_corpus(rows[10:]), HashModel(), qdrant, "corpus").points == 20


def test_a_truncated_corpus_deletes_nothing(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    rows = short_rows(50)
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    with pytest.raises(
        InputError,
        match=r"40 of 50 points \(80%\), of documents such as d\d+, d\d+, d\d+, are not in the corpus, more than the",
    ):
        ingest(write_corpus(rows[:10]), HashModel(), qdrant, "corpus", settings=SYNC)
    assert qdrant.count("corpus").count == 50
    assert ingest(write_corpus(rows[:10]), HashModel(), qdrant, "corpus", settings=ANY_SHARE).deleted == 40


def test_a_dry_run_that_the_guard_stops_claims_no_write(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    rows = short_rows(50)
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    dry = IngestSettings(sync=True, dry_run=True)
    shown: list[Progress] = []
    with pytest.raises(InputError, match="this was a dry run, and nothing was deleted"):
        ingest(write_corpus(rows[:10]), HashModel(), qdrant, "corpus", settings=dry, on_progress=shown.append)
    assert (shown[-1].stored, shown[-1].total) == (10, 10)


def test_a_corpus_with_rejected_rows_deletes_nothing_unless_told(
    qdrant: QdrantClient, write_corpus: WriteCorpus
) -> None:
    rows = short_rows(20)
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    damaged = write_corpus([*rows[:18], '{"id": "d18", "tex'])
    with pytest.raises(InputError, match=r"rejected rows: 1 \(line 19: is not JSON.* nothing was deleted"):
        ingest(damaged, HashModel(), qdrant, "corpus", settings=SYNC)
    assert qdrant.count("corpus").count == 20
    forced = IngestSettings(sync=True, sync_despite_rejects=True)
    assert ingest(damaged, HashModel(), qdrant, "corpus", settings=forced).points == 18


class WritingModel(HashModel):
    """A model that, once the first rows of a corpus have been read, does what another program does to the file."""

    def __init__(self, write: Callable[[], object]) -> None:
        super().__init__()
        self._write: Callable[[], object] | None = write

    def contract(self) -> VectorContract:
        if self._write is not None:
            self._write()
            self._write = None
        return super().contract()


@pytest.mark.parametrize("change", ["cut", "grown", "written again", "replaced"])
def test_a_corpus_that_is_written_to_while_it_is_read_deletes_nothing(
    qdrant: QdrantClient, write_corpus: WriteCorpus, change: str
) -> None:
    """A file that is replaced under its name is read to its end as it was."""
    rows = short_rows(1_000)
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    corpus = write_corpus(rows[:950])
    whole = corpus.read_bytes()
    other = corpus.with_name("other")

    def write() -> None:
        if change == "cut":
            corpus.write_bytes(b"".join(whole.splitlines(keepends=True)[:900]))
        elif change == "grown":
            corpus.write_bytes(whole + whole.splitlines(keepends=True)[0])
        elif change == "written again":
            corpus.write_bytes(whole)
        else:
            other.write_bytes(whole[: len(whole) // 2])
            other.replace(corpus)

    if change == "replaced":
        assert ingest(corpus, WritingModel(write), qdrant, "corpus", settings=SYNC).deleted == 50
        return
    with pytest.raises(InputError, match=r"corpus.jsonl: was written to while it was read.* nothing was deleted"):
        ingest(corpus, WritingModel(write), qdrant, "corpus", settings=SYNC)
    assert qdrant.count("corpus").count == 1_000


def test_points_of_others_are_left_alone(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    """Points that carry our mark but whose id is not ours were there before a vector was attached to them."""
    rows = short_rows(10)
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    [record] = qdrant.scroll("corpus", limit=1)[0]
    foreign = [
        models.PointStruct(id=1, vector={}, payload={"text": "theirs"}),
        models.PointStruct(id=2, vector={}, payload=record.payload),
        models.PointStruct(id=3, vector={}, payload={"doc_id": "x", "_care": {"vectors": {"hash-model": "h"}}}),
    ]
    qdrant.upsert("corpus", foreign)
    report = ingest(write_corpus(rows[:9]), HashModel(), qdrant, "corpus", settings=SYNC)
    assert report.deleted == 1
    assert len(qdrant.retrieve("corpus", [1, 2, 3])) == 3


def test_a_shard_deletes_only_its_own(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    rows = short_rows(60)
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    deleted = [
        ingest(
            write_corpus(rows[10:]),
            HashModel(),
            qdrant,
            "corpus",
            settings=IngestSettings(sync=True, max_delete_fraction=0.5, shard=Shard(number, 2)),
        ).deleted
        for number in (1, 2)
    ]
    assert sum(deleted) == 10
    assert all(deleted)
    assert stored_texts(qdrant).keys() == {row["id"] for row in rows[10:]}


def test_shards_of_a_program_delete_as_their_dry_runs_say(qdrant: QdrantClient) -> None:
    """The document with which the program begins is of one shard alone, and in the end it is rejected."""
    model, documents = HashModel(), [Document(f"d{n}", f"发烧 {n}") for n in range(40)]
    for kept in (documents, documents[:-4], [Document("d0", ""), *documents[1:-8]]):
        for number in (1, 2):
            sync = replace(ANY_SHARE, sync_despite_rejects=True, shard=Shard(number, 2))
            dry = ingest(kept, model, qdrant, "corpus", settings=replace(sync, dry_run=True))
            assert ingest(kept, model, qdrant, "corpus", settings=sync).deleted == dry.deleted
        assert stored_texts(qdrant).keys() == {document.id for document in kept if document.text}


@pytest.mark.parametrize(("ending", "compress"), [("gz", gzip.compress), ("zst", zstandard.compress)])
def test_a_compressed_corpus_that_is_cut_off_deletes_nothing(
    qdrant: QdrantClient, tmp_path: Path, ending: str, compress: Callable[[bytes], bytes]
) -> None:
    """Whatever fraction may be deleted: what was not read is not known to be gone."""
    rows = [{"id": f"d{n}", "text": f"{n * 7919 % 10007} {text[:50]}"} for n, text in enumerate(medical_texts(600))]
    whole = compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    corpus = tmp_path / f"corpus.jsonl.{ending}"
    corpus.write_bytes(whole)
    assert ingest(corpus, HashModel(), qdrant, "corpus", settings=ANY_SHARE).points == 600
    for kept in (0.5, 0.99):
        corpus.write_bytes(whole[: int(kept * len(whole))])
        with pytest.raises(InputError, match="is damaged after row"):
            ingest(corpus, HashModel(), qdrant, "corpus", settings=ANY_SHARE)
        assert qdrant.count("corpus").count == 600


def test_a_sync_with_some_files_deletes_no_documents_of_the_others(
    qdrant: QdrantClient, write_corpus: WriteCorpus
) -> None:
    rows = short_rows(60)
    one, other = write_corpus(rows[:50], "one.jsonl"), write_corpus(rows[50:], "other.jsonl")
    ingest([one, other], HashModel(), qdrant, "corpus")
    with pytest.raises(InputError, match=r"also has documents of .*other\.jsonl, which this run does not read"):
        ingest(one, HashModel(), qdrant, "corpus", settings=SYNC)
    assert qdrant.count("corpus").count == 60
    assert ingest(one.parent, HashModel(), qdrant, "corpus", settings=SYNC).deleted == 0
    ended = ingest(one, HashModel(), qdrant, "corpus", settings=replace(ANY_SHARE, sync_other_files=True))
    assert ended.deleted == 10
    assert ingest(one, HashModel(), qdrant, "corpus", settings=SYNC).deleted == 0, "nothing is there of others"
    whole = write_corpus(rows, "whole.jsonl")
    assert ingest(whole, HashModel(), qdrant, "corpus", settings=SYNC).deleted == 0, "nothing of the other is missing"


def test_a_refused_sync_is_a_run_that_has_ended(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    rows = short_rows(20)
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    with pytest.raises(InputError, match="more than the 20% that --sync may delete"):
        ingest(write_corpus([*rows[:5], {"id": "new", "text": "新"}]), HashModel(), qdrant, "corpus", settings=SYNC)
    assert Collection(qdrant, "corpus").schema.unfinished is None


def test_a_dry_run_tells_what_the_sync_deletes(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    """Chunks that a document does not have any more do not count against the limit, in neither run."""
    rows = [{"id": f"d{n}", "text": text} for n, text in enumerate(medical_texts(20))]
    ingest(write_corpus(rows), HashModel(max_tokens=12), qdrant, "corpus")
    shorter = write_corpus([{**row, "text": row["text"][:8]} for row in rows])
    dry = ingest(shorter, HashModel(max_tokens=12), qdrant, "corpus", settings=replace(SYNC, dry_run=True))
    real = ingest(shorter, HashModel(max_tokens=12), qdrant, "corpus", settings=SYNC)
    assert dry.deleted == real.deleted > 20


@pytest.mark.parametrize("given", ["d/.hidden.jsonl", "d/link", "d/c.rejects.jsonl", "d1.jsonl"])
@pytest.mark.parametrize("again", ["d", "d[1].jsonl"])
def test_what_a_folder_is_read_without_is_not_missing_from_it(
    qdrant: QdrantClient, tmp_path: Path, given: str, again: str
) -> None:
    """A file that was named by itself stays, while it is there, whatever holds it; and a name is not a pattern."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "d").mkdir()
    (tmp_path / "d/link").symlink_to(tmp_path / "elsewhere")
    for number, name in enumerate(["d/.hidden.jsonl", "d/c.rejects.jsonl", "d1.jsonl", "elsewhere/a.jsonl"]):
        (tmp_path / name).write_text(json.dumps({"id": f"g{number}", "text": "发烧时多喝水"}), encoding="utf-8")
    for number, name in enumerate(["d/a.jsonl", "d[1].jsonl"]):
        (tmp_path / name).write_text(json.dumps({"id": f"a{number}", "text": "少吃盐"}), encoding="utf-8")
    ingest(tmp_path / given, HashModel(), qdrant, "corpus")
    before = stored_texts(qdrant).keys()
    with pytest.raises(InputError, match="which this run does not read"):
        ingest(tmp_path / again, HashModel(), qdrant, "corpus", settings=ANY_SHARE)
    assert before <= stored_texts(qdrant).keys()


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "pipe"]), st.sampled_from([0, 1, 5]), st.booleans()), max_size=6),
    st.sampled_from([None, "a", "pipe"]),
)
def test_a_sync_of_a_pipe_or_program_deletes_documents_of_no_other(
    steps: list[tuple[str, int, bool]], alone: str | None
) -> None:
    """They have no name: what tells them apart is the document with which an earlier run of them began."""
    model, kept, is_known = HashModel(), set[str](), alone is not None
    with closing(QdrantClient(":memory:")) as client, pytest.MonkeyPatch.context() as patch:
        for source, gone, syncs in [("pipe" if alone == "pipe" else "a", 9, False), *steps]:
            name = alone or source
            rows = [{"id": f"{name}{n}", "text": f"{name} {n}"} for n in range(9) if n != gone]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
            corpus = "-" if name == "pipe" else [Document(**row) for row in rows]
            kept = {id_ for id_ in kept if not (syncs and id_[:-1] == name)} | {row["id"] for row in rows}
            is_known = is_known and gone != 0  # one that has lost the document with which it began is another one
            with nullcontext() if is_known else suppress(InputError):
                ingest(corpus, model, client, "corpus", settings=replace(ANY_SHARE, sync=syncs))
                assert not is_known or stored_texts(client).keys() == kept
            assert kept <= stored_texts(client).keys()
            kept = {*stored_texts(client)}
