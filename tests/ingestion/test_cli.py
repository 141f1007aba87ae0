"""The command as people run it."""

import datetime
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from qdrant_client import models

from care_qdrant.cli.ingest import command
from care_qdrant.errors import InputError
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Vectors
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.verify import verify_collection
from tests.ingestion.conftest import WriteCorpus, short_rows
from tests.standin import StandIn
from tests.tiny import HashEncoder, HashModel

pytestmark = pytest.mark.usefixtures("hash_command")


def run(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)), input=stdin, catch_exceptions=False)


def test_one_argument_is_enough(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    corpus = write_corpus(short_rows(12), "guidelines.v2.jsonl")
    result = run(corpus, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["documents"], report["points"], report["rejected"]) == (12, 12, 0)
    assert (report["collection"], report["vector_name"]) == ("guidelines.v2", "hash-model")
    for name in ("chunks", "encoded", "unchanged", "deleted", "seconds", "documents_per_second", "fingerprint"):
        assert name in report
    with open_client(path=tmp_path / "qdrant") as client:
        assert client.count("guidelines.v2").count == 12


def test_a_dry_run_says_where_and_what_would_go(write_corpus: WriteCorpus) -> None:
    run(write_corpus(short_rows(12), "today.jsonl"))
    corpus = write_corpus(short_rows(11), "today.jsonl")
    dry = run(corpus, "--sync", "--dry-run").stdout
    assert dry.startswith("dry run into today (the name of the corpus; --collection NAME")
    assert "0 points to write" in dry
    assert "11 are stored as they are\n1 point would be deleted, for example those of d11\n" in dry
    done = run(corpus, "--sync", "--collection", "today").stdout
    assert "(11 unchanged, 1 deleted)\ntoday: 11 points" in done


def test_vectors_that_do_not_have_the_new_texts_are_named(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    """Searches by an attached vector would miss what is new without a word."""
    first = run(write_corpus(short_rows(3), "today.jsonl"))
    with open_client(path=tmp_path / "qdrant") as client:
        attach_vector(client, "today", HashModel(salt="other", name="other"))
    again = run(write_corpus(short_rows(3), "today.jsonl"))
    for nothing in (first, again):
        assert "missing or of an earlier text" not in nothing.stderr
    more = run(write_corpus(short_rows(5), "today.jsonl"))
    assert "2 points were encoded, whose 'other' is missing or of an earlier text" in more.stderr
    assert "with: care attach today --vector-name NAME" in more.stderr
    with open_client(path=tmp_path / "qdrant") as client:
        report = verify_collection(client, "today", HashModel())
    [said] = report.problems
    assert "2 points have no vector" in said and said.endswith("and with --model 'other', which made the others")


def test_a_collection_that_is_named_after_a_folder_is_not_said_to_be_named_after_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "fever.md").write_text("# 发烧\n\n多喝水。\n", encoding="utf-8")
    assert "\nnotes (the name of the corpus; --collection NAME gives another): 1 point with" in run(folder).stdout


def test_a_file_whose_fields_have_other_names_is_refused_before_anything_is_written(
    write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    rows = [{"key": row["id"], "body": row["text"]} for row in short_rows(120)]
    corpus = write_corpus(rows)
    with pytest.raises(InputError, match=r"first 100 rows .* document has no 'id' \(keys: key, body\).*--text-field"):
        run(corpus)
    with open_client(path=tmp_path / "qdrant") as client:
        assert not client.get_collections().collections
    assert run(corpus, "--id-field", "key", "--text-field", "body").exit_code == 0
    corpus.write_text('"no object"\n' * 3, encoding="utf-8")
    with pytest.raises(InputError, match="not one of the first"):
        run(corpus)
    corpus = write_corpus([{"text": row["text"]} for row in short_rows(3)])
    with pytest.raises(InputError, match="without an id, --id-field :hash"):
        run(corpus)
    assert run(corpus, "--id-field", ":hash").exit_code == 0


def test_options_reach_the_server(write_corpus: WriteCorpus, server: StandIn) -> None:
    corpus = write_corpus([{"key": "1", "body": "一"}, {"key": "2", "body": "二" * 100}])
    options = [
        "--id-field",
        "key",
        "--text-field",
        "body",
        "--overflow",
        "truncate",
        "--vector-name",
        "v",
        "--bm25",
    ]
    storage = ["--quantization", "binary", "--on-disk", "--shards", "2", "--replicas", "1"]
    result = run(corpus, "--url", server.url, *options, *storage)
    assert result.exit_code == 0
    with open_client(url=server.url) as client:
        config = client.get_collection("corpus").config
    assert isinstance(config.params.vectors, dict)
    assert config.params.vectors["v"].memory is models.Memory.COLD or config.params.vectors["v"].on_disk
    assert config.params.sparse_vectors is not None
    assert config.params.shard_number == 2
    assert config.quantization_config is not None


def test_names_that_differ_behind_a_dot_are_two_collections(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    """A sync of one year would delete the other."""
    run(write_corpus(short_rows(6), "reports.2023.jsonl"))
    corpus = write_corpus([{**row, "id": f"x{row['id']}"} for row in short_rows(60)], "reports.2024.jsonl")
    assert json.loads(run(corpus, "--json").stdout)["collection"] == "reports.2024"
    assert json.loads(run(corpus, "--sync", "--json").stdout)["deleted"] == 0
    with open_client(path=tmp_path / "qdrant") as client:
        assert client.count("reports.2023").count == 6


def test_rows_behind_an_array_are_not_deleted(tmp_path: Path) -> None:
    old, new = json.dumps(short_rows(44)[:40]), json.dumps(short_rows(44)[40:])
    (tmp_path / "export.json").write_text(json.dumps(short_rows(44)))
    run("export.json")
    (tmp_path / "export.json").write_text(f"{old}\n{new}")
    report = json.loads(run("export.json", "--sync", "--json").stdout)
    assert (report["documents"], report["unchanged"], report["deleted"]) == (44, 44, 0)
    (tmp_path / "export.json").write_text(f"{old}\n<html>")
    with pytest.raises(InputError, match=r"after row 40 .line 2"):
        run("export.json", "--sync")
    with open_client(path=tmp_path / "qdrant") as client:
        assert client.count("export").count == 44


def test_a_file_of_the_user_is_no_place_for_rejected_rows(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("my notes")
    for rows in (short_rows(3), [*short_rows(3), "broken"]):
        with pytest.raises(InputError, match=r"notes\.txt: exists, and no file is written over"):
            run(write_corpus(rows), "--rejects", "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "my notes"
    with open_client(path=tmp_path / "qdrant") as client:
        assert not client.get_collections().collections


def test_numbers_and_dates_of_a_table_can_be_compared(tmp_path: Path) -> None:
    table = "id,text,年份,day,ward\n" + "".join(f"{n},第{n}条。,{2015 + n},2024/{n}/1,{n:03}\n" for n in range(1, 10))
    (tmp_path / "t.csv").write_text(table, encoding="utf-8")
    assert run("t.csv").exit_code == 0
    assert run("-", "--format", "csv", "--collection", "piped", stdin=table.encode()).exit_code == 0
    types = ["--types", "年份=int,day=date,ward=int"]
    assert run("-", "--format", "csv", "--collection", "typed", *types, stdin=table.encode()).exit_code == 0
    with pytest.raises(InputError, match="has no column 'wards', which --types names"):
        run("-", "--format", "csv", "--collection", "typed", "--types", "wards=int", stdin=table.encode())
    years = models.FieldCondition(key="年份", range=models.Range(gte=2020))
    spring = models.FieldCondition(key="day", range=models.DatetimeRange(lt=datetime.date(2024, 4, 1)))
    with open_client(path=tmp_path / "qdrant") as client:
        for collection, found, ward in (("t", (5, 3), "001"), ("typed", (5, 3), 1), ("piped", (0, 0), "001")):
            filters = [models.Filter(must=[condition]) for condition in (years, spring)]
            assert tuple(client.count(collection, each).count for each in filters) == found
            assert ward in {(point.payload or {})["ward"] for point in client.scroll(collection)[0]}


def test_a_name_that_is_not_utf_8_is_no_name_of_a_collection(
    write_corpus: WriteCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "care_qdrant")  # pytest-xdist cannot send a log with such a name to its parent
    corpus = write_corpus([*short_rows(2), "broken"]).rename(tmp_path / os.fsdecode("病历.jsonl".encode("gbk")))
    with pytest.raises(InputError, match="give --collection"):
        run(corpus)
    result = run(corpus, "--collection", "c", "--json")
    assert result.stdout_bytes.isascii(), "a report is JSON, and JSON is UTF-8"
    assert Path(json.loads(result.stdout)["rejects_file"]).exists()


def test_rejected_rows_are_readable(write_corpus: WriteCorpus) -> None:
    corpus = write_corpus(short_rows(2))
    bad = "".join(json.dumps({"id": id_, "text": ""}) + "\n" for id_ in ("糖尿病-1", "半\udc80"))
    corpus.write_text(corpus.read_text(encoding="utf-8") + bad, encoding="utf-8")
    result = run(corpus, "--json")
    listed = Path(json.loads(result.stdout)["rejects_file"]).read_text(encoding="utf-8")
    assert '"糖尿病-1"' in listed
    assert [json.loads(line)["id"] for line in listed.splitlines()] == ["糖尿病-1", "半\\udc80"]


def test_an_interrupted_run_says_what_is_stored(
    write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Interrupted(HashEncoder):
        """Ctrl-C comes in the middle."""

        batches = 0

        def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
            self.batches += 1
            if self.batches > 100:
                raise KeyboardInterrupt
            return super().encode(texts, prompt=prompt)

    model = HashModel()
    model._encoder = Interrupted()
    monkeypatch.setattr(CareModel, "load", lambda *_args, **_options: model)
    monkeypatch.setenv("CARE_BATCH_TOKENS", "400")
    result = CliRunner().invoke(command, [str(write_corpus(short_rows(2_000))), "--collection", "c"])
    with open_client(path=tmp_path / "qdrant") as client:
        stored = client.count("c").count
    assert 0 < stored < 2_000
    assert f"stopped: {stored:,} points of this corpus are stored; 2,000 documents were read so far" in result.stdout


@pytest.mark.parametrize("share", ["0/4", "5/4", "1", "a/b", "1/0"])
def test_a_share_that_is_none_is_a_usage_error(write_corpus: WriteCorpus, share: str) -> None:
    result = run(write_corpus(short_rows(1)), "--shard", share)
    assert result.exit_code == 2
    assert "1/4, 2/4, 3/4 and 4/4" in result.stderr
