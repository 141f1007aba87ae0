"""The command as people run it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from care_qdrant.cli.ingest import command
from care_qdrant.errors import InputError
from care_qdrant.qdrant.connection import open_client
from tests.index.ingestion.conftest import WriteCorpus, short_rows
from tests.standin import StandIn

pytestmark = pytest.mark.usefixtures("hash_command")


def run(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)), input=stdin, catch_exceptions=False)


def test_one_argument_is_enough(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    corpus = write_corpus(short_rows(12), "guidelines.v2.jsonl")
    result = run(corpus)
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["documents"], report["points"], report["rejected"]) == (12, 12, 0)
    assert (report["collection"], report["vector_name"]) == ("guidelines", "hash-model")
    for name in ("chunks", "encoded", "unchanged", "deleted", "seconds", "documents_per_second", "fingerprint"):
        assert name in report
    with open_client(path=tmp_path / "qdrant") as client:
        assert client.count("guidelines").count == 12


def test_a_dry_run_on_a_terminal_says_where_and_what_would_go(
    write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(write_corpus(short_rows(12), "today.jsonl"))
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: self.name == "<stdout>", raising=False)
    corpus = write_corpus(short_rows(11), "today.jsonl")
    dry = run(corpus, "--sync", "--dry-run").stdout
    assert dry.startswith("dry run into today (named after the file: --collection keeps")
    assert "0 points to write" in dry
    assert "11 are stored as they are\n1 points would be deleted, as those of d11\n" in dry
    done = run(corpus, "--sync", "--collection", "today").stdout
    assert "(11 unchanged, 1 deleted)\ntoday: 11 points" in done


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
        "reject",
        "--vector-name",
        "v",
        "--sparse",
        "bm25",
    ]
    storage = ["--quantization", "binary", "--on-disk", "--shards", "2", "--replicas", "1"]
    result = run(corpus, "--url", server.url, *options, *storage)
    assert result.exit_code == 8  # one is too long
    with open_client(url=server.url) as client:
        config = client.get_collection("corpus").config
    assert isinstance(config.params.vectors, dict)
    assert config.params.vectors["v"].on_disk
    assert config.params.sparse_vectors is not None
    assert config.params.shard_number == 2
    assert config.quantization_config is not None


@pytest.mark.parametrize("share", ["0/4", "5/4", "1", "a/b", "1/0"])
def test_a_share_that_is_none_is_a_usage_error(write_corpus: WriteCorpus, share: str) -> None:
    result = run(write_corpus(short_rows(1)), "--shard", share)
    assert result.exit_code == 2
    assert "1/4, 2/4, 3/4 and 4/4" in result.stderr
