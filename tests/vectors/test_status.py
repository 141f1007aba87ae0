"""The description that `care status` prints of a collection, alone and before attach, verify and detach."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.cli.status import _detail_lines
from care_qdrant.contracts.learned import LearnedContract
from care_qdrant.errors import InputError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.checks import require_vector
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import Document
from care_qdrant.vectors.status import inspect_collection
from tests.vectors.collections import DIM, NAME, contents, fill, point


def test_strict_mode_is_shown(client: QdrantClient) -> None:
    fill(client, "named", "plain")
    client.update_collection(NAME, strict_mode_config=models.StrictModeConfig(enabled=True, upsert_max_batchsize=7))
    found = inspect_collection(client, NAME)
    assert found.strict_mode["upsert_max_batchsize"] == 7


def test_the_texts_that_the_included_model_does_not_read_are_counted(client: QdrantClient) -> None:
    texts = [
        "Zuckerkranke dürfen Wassermelonen essen, wenn sie auf die Menge achten und den Blutzucker messen.",
        "糖尿病人可以少量吃西瓜。",
        "People with diabetes may eat a little water melon after they have measured their blood sugar.",
    ]
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    ingest(documents, CareModel.load(), client, "mixed", settings=IngestSettings(any_language=True))
    found = inspect_collection(client, "mixed")
    assert (found.sampled, found.unread_by_included) == (3, 1)
    assert "  the included model does not read 1 of 3 sampled texts: its vectors of them mean nothing" in _detail_lines(
        found
    )
    fill(client, "named", "plain")
    assert inspect_collection(client, NAME).unread_by_included is None


@pytest.mark.parametrize("tool", ["langchain", "haystack"])
def test_a_point_of_ours_without_its_text_ends_no_description(client: QdrantClient, tool: str) -> None:
    """It may have the text field of the tool that wrote the others, as a value of the user's metadata."""
    fill(client, "named", tool)
    payload = point("named", tool, 1, "别的文本").payload or {}
    client.overwrite_payload(NAME, {**payload, "text": "", "_care": {"chunk": 0}}, points=[1])
    found = inspect_collection(client, NAME)
    assert (found.sampled, found.sampled_without_text) == (40, 1)


def test_a_learned_encoder_is_named_with_its_vector(client: QdrantClient) -> None:
    fill(client, "unnamed", "plain")
    learned = LearnedContract("f" * 64, "articles-queries", DIM, "Cosine", {"1": "00"})
    Collection(client, NAME).write_learned("", learned)
    lines = [*_detail_lines(inspect_collection(client, NAME))]
    by_whom = "by another tool; queries by articles-queries (ffffffffffff), learned from it"
    assert f"  vector (unnamed): dense {DIM} Cosine, 40 points, {by_whom}" in lines
    advice = (
        r"unnamed vector is searched by the learned articles-queries \(f{12}\): give that model with --model, or add"
    )
    with pytest.raises(InputError, match=advice):
        require_vector(Collection(client, NAME).schema, "care")


def test_the_four_commands_in_their_order(tmp_path: Path, pair_folder: Path) -> None:
    """A person runs them with a real pair on a folder."""
    import json

    from care_qdrant.cli import attach as attach_cli
    from care_qdrant.cli import detach as detach_cli
    from care_qdrant.cli import status, verify
    from care_qdrant.errors import NotVerified

    client = QdrantClient(path=str(tmp_path))
    fill(client, "unnamed", "llama-index", count=12)
    before = contents(client)
    client.close()
    path, model = ["--path", str(tmp_path)], ["--model", str(pair_folder)]

    seen = CliRunner().invoke(status.command, [NAME, *path], catch_exceptions=False).stdout
    assert "payloads of llama-index: 12 of 12" in seen
    planned = CliRunner().invoke(attach_cli.command, [NAME, *path, *model, "--dry-run"], catch_exceptions=False).stdout
    assert "would add vector 'tiny-pair'" in planned
    assert "note: the collection has an unnamed vector" in planned

    done = CliRunner().invoke(attach_cli.command, [NAME, *path, *model, "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["covered"] == 12
    assert "note: the collection has an unnamed vector" in done.stderr

    good = CliRunner().invoke(verify.command, [NAME, *path, *model], catch_exceptions=False)
    assert good.stdout.endswith("OK: 12 points, 1 vector\n")
    client = QdrantClient(path=str(tmp_path))
    client.delete_vectors(NAME, ["tiny-pair"], [1])
    client.close()
    bad = CliRunner().invoke(verify.command, [NAME, *path, *model, "--json"])
    assert isinstance(bad.exception, NotVerified)
    assert json.loads(bad.stdout)["covered"] == 11

    sparse = [NAME, *path, "--bm25"]
    CliRunner().invoke(attach_cli.command, sparse, catch_exceptions=False)
    assert CliRunner().invoke(verify.command, [NAME, *path, "--vector-name", "bm25"]).exit_code == 0
    unsure = CliRunner().invoke(detach_cli.command, [NAME, *path])
    assert isinstance(unsure.exception, InputError)
    assert "bm25, tiny-pair; give --vector-name, or --all" in str(unsure.exception)
    assert CliRunner().invoke(detach_cli.command, [NAME, *path, "--all", "--vector-name", "bm25"]).exit_code == 2
    gone = CliRunner().invoke(detach_cli.command, [NAME, *path, "--all", "--json"], catch_exceptions=False)
    assert [report["vector_name"] for report in json.loads(gone.stdout)] == ["bm25", "tiny-pair"]
    client = QdrantClient(path=str(tmp_path))
    assert contents(client) == before
    client.close()
