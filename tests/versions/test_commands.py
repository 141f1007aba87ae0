"""``care promote`` and ``care publish`` as programs: one report on stdout, one line for an error."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from qdrant_client import QdrantClient

from care_qdrant.cli import care
from care_qdrant.qdrant.connection import open_client
from tests.standin import StandIn
from tests.versions.conftest import SCHEMAS, assert_same, contents, fill


def run(*arguments: object) -> Result:
    return CliRunner().invoke(care, [str(each) for each in arguments], catch_exceptions=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    with open_client(path=path) as folder:
        fill(folder, "docs", SCHEMAS["two-and-sparse"], 30)
    return path


def test_from_a_folder_to_a_published_collection_and_back(source: Path, server: StandIn, client: QdrantClient) -> None:
    promoted = json.loads(
        run("promote", "docs", "--path", source, "--url", server.url, "--to", "corpus", "--json").stdout
    )
    assert (promoted["target"], promoted["points"], promoted["added"]) == ("corpus", 30, 30)
    for version in ("live_v1", "live_v2"):
        published = json.loads(
            run("publish", "corpus", "--as", "live", "--url", server.url, "--keep", 1, "--json").stdout
        )
        assert published["version"] == version
        assert published["known_items"]["found"] == published["known_items"]["asked"]
    with open_client(path=source) as folder:
        assert_same(contents(client, "live"), contents(folder, "docs"))
    assert (
        json.loads(run("publish", "live", "--rollback", "--url", server.url, "--json").stdout)["version"] == "live_v1"
    )


@pytest.mark.parametrize(
    ("arguments", "then"),
    [
        (("live", "--rollback"), "care publish COLLECTION --as live"),
        (("docs", "--as", "docs"), "care publish docs --as docs-live"),
    ],
)
def test_a_command_in_an_error_names_the_database(source: Path, arguments: tuple[str, ...], then: str) -> None:
    result = CliRunner().invoke(care, ["publish", *arguments, "--path", str(source)])
    assert str(result.exception).endswith(f"with: {then} --path {source}")
