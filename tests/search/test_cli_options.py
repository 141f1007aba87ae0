"""`care search` refuses options that would have no effect, and explains an empty answer to a filter."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from qdrant_client import QdrantClient

from care_qdrant.cli import search
from care_qdrant.contracts.metadata import RUN
from care_qdrant.errors import InputError
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import Chunk, Document
from care_qdrant.vectors.attach_plan import plan_attach
from tests.search.conftest import fill
from tests.tiny import TEXTS


@pytest.mark.parametrize(
    "options",
    [
        ["--mode", "dense", "--alpha", "0.3"],
        ["--mode", "sparse", "--alpha", "0.3"],
        ["--mode", "sparse", "--task", "faq"],
        ["--mode", "sparse", "--vector-name", "care-small"],
        ["--group-size", "2"],
    ],
)
def test_an_option_that_the_mode_ignores_is_refused(options: Sequence[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(search.command, ["糖尿病", "--path", str(tmp_path), *options])
    assert result.exit_code == 2 and "has no effect here; it needs" in result.output


def test_a_filter_on_an_unknown_key_names_those_that_are_there(tmp_path: Path, pair_folder: Path) -> None:
    client = QdrantClient(path=str(tmp_path / "qdrant"))
    row = Document("d1", TEXTS[0], metadata={"dept": "内科", "year": "2020"})
    fill(client, CareModel.load(pair_folder), [Chunk(row, row.text)])
    client.close()
    options = ["--path", str(tmp_path / "qdrant"), "--model", str(pair_folder)]
    with pytest.raises(InputError, match=r"no point of .* has 'department' \(some keys: dept, year\)"):
        CliRunner().invoke(search.command, ["糖", "--filter", "department=内科", *options], catch_exceptions=False)
    with pytest.raises(InputError, match="'year' holds texts, such as '2020', and the condition compares numbers"):
        CliRunner().invoke(search.command, ["糖", "--filter", "year>=2020", *options], catch_exceptions=False)
    table = CliRunner().invoke(search.command, ["糖", "--filter", "year=2020", *options], catch_exceptions=False)
    assert "d1" in table.output, "a table holds texts, and this one reads as a number"
    other = CliRunner().invoke(search.command, ["糖", "--filter", "year!=2020", *options], catch_exceptions=False)
    unmatched = CliRunner().invoke(search.command, ["糖", "--filter", "dept=外科", *options], catch_exceptions=False)
    assert other.output.strip() == unmatched.output.strip() == "nothing found"


def test_a_question_in_another_script_than_the_texts_says_so(tmp_path: Path, pair_folder: Path) -> None:
    client = QdrantClient(path=str(tmp_path / "qdrant"))
    row = Document("d1", "高血压患者应当限制食盐")
    fill(client, CareModel.load(pair_folder), [Chunk(row, row.text)])
    client.close()
    options = ["--path", str(tmp_path / "qdrant"), "--model", str(pair_folder)]
    other = CliRunner().invoke(search.command, ["高血壓患者應當限制食鹽嗎", *options], catch_exceptions=False)
    same = CliRunner().invoke(search.command, ["高血压患者吃盐", *options], catch_exceptions=False)
    assert "note: the question is in traditional Chinese characters" in other.stderr and "d1" in other.stdout
    assert "note" not in same.stderr


def test_a_collection_of_an_unfinished_ingestion_says_so(tmp_path: Path, pair_folder: Path) -> None:
    """Half a corpus answers like a whole one."""
    client = QdrantClient(path=str(tmp_path / "qdrant"))
    fill(client, model := CareModel.load(pair_folder), [Chunk(Document("d1", TEXTS[0]), TEXTS[0])])
    run = {RUN.of("killed"): {"shard": "1/1", "started": "2026-03-01T02:00:00Z"}}
    [name] = Collection(client, "").names()
    Collection(client, name).update("as a killed run leaves it", metadata=run)
    assert "began at 2026-03-01T02:00:00Z and has not ended" in plan_attach(client, name, model).notices[-1]
    client.close()
    options = ["--path", str(tmp_path / "qdrant"), "--model", str(pair_folder)]
    found = CliRunner().invoke(search.command, ["糖", *options], catch_exceptions=False)
    assert "d1" in found.stdout and "has not ended" in found.stderr
