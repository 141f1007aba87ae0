import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from care_trainer.config import Data
from care_trainer.data import table
from care_trainer.data.sampling import EpochSampler
from care_trainer.data.table import pair_rows, text_rows

from care_qdrant.errors import InputError, TrainingError
from tests.trainer.tiny_run import write_jsonl

ROWS = [
    {"query": "q1", "pos": ["p1", "p2"], "neg": ["n1", "n2"], "source": "a"},
    {"query": "q1", "pos": ["p1"], "neg": ["n1", "n2"], "source": "b"},
    {"query": "q2", "positive": "p3", "negatives": ["n3"], "source": "b"},
    {"query": "q3", "positive": "p4", "source": "c"},
]


def _data(tmp_path: Path, **settings: Any) -> tuple[Data, Path, Path]:
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    return Data(files=("rows.jsonl",), **settings), tmp_path, tmp_path / "rows"


def test_pairs_come_once_in_the_order_of_the_file_with_all_their_negatives(tmp_path: Path) -> None:
    rows = pair_rows(*_data(tmp_path, weights={"b": 0.5}))
    assert rows.columns.select_columns(["query", "positive", "negatives", "source", "label"]).to_list() == [
        {"query": "q1", "positive": "p1", "negatives": ["n1", "n2"], "source": "a", "label": 0},
        {"query": "q1", "positive": "p2", "negatives": ["n1", "n2"], "source": "a", "label": 1},
        {"query": "q2", "positive": "p3", "negatives": ["n3"], "source": "b", "label": 2},
        {"query": "q3", "positive": "p4", "negatives": [], "source": "c", "label": 3},
    ]
    assert rows.weights.tolist() == [1.0, 1.0, 0.5, 1.0]
    numbers, names = rows.sources
    assert [names[at] for at in numbers] == ["a", "a", "b", "c"]


def test_texts_come_once_with_their_lengths(tmp_path: Path) -> None:
    rows = text_rows(*_data(tmp_path, max_rows=5))
    assert rows.columns["text"][:] == ["q1", "p1", "p2", "n1", "n2"]
    assert rows.characters.tolist() == [2] * 5
    assert text_rows(*_data(tmp_path), sides=("query",)).columns["text"][:] == ["q1", "q2", "q3"]


def test_a_pair_may_be_one_text_of_title_and_content(tmp_path: Path) -> None:
    rows = text_rows(*_data(tmp_path), joined=True)
    assert rows.columns["text"][:] == ["q1 p1", "q1 p2", "q2 p3", "q3 p4"]
    write_jsonl(tmp_path / "rows.jsonl", [{"text": "alone"}, ROWS[2]])
    assert text_rows(Data(files=("rows.jsonl",)), tmp_path, tmp_path / "2", joined=True).columns["text"][:] == [
        "alone",
        "q2 p3",
    ]


def test_a_table_is_written_once_and_anew_when_file_settings_or_columns_change(tmp_path: Path) -> None:
    data, root, folder = _data(tmp_path)
    pair_rows(data, root, folder)
    (first,) = folder.iterdir()
    written = first.stat().st_mtime_ns
    pair_rows(data, root, folder)
    assert [path.stat().st_mtime_ns for path in folder.iterdir()] == [written]
    text_rows(data, root, folder)
    pair_rows(Data(files=data.files, max_characters=1), root, folder)
    write_jsonl(tmp_path / "rows.jsonl", ROWS[2:])
    assert len(pair_rows(data, root, folder)) == 2
    assert len(list(folder.iterdir())) == 4


def test_processes_of_their_own_write_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, root, folder = _data(tmp_path, weights={"b": 0.5})
    write_jsonl(
        tmp_path / "rows.jsonl", [{**row, "query": f"{row['query']}{at // 2}"} for at in range(600) for row in ROWS]
    )
    pair_rows(data, root, folder)
    monkeypatch.setattr(table, "LARGE", 0)
    pair_rows(data, root, tmp_path / "parallel")
    (alone,), (parallel,) = folder.iterdir(), (tmp_path / "parallel").iterdir()
    assert parallel.name == alone.name and parallel.read_bytes() == alone.read_bytes()
    write_jsonl(tmp_path / "rows.jsonl", [*ROWS, {"query": "alone"}])
    with pytest.raises(InputError, match=r"rows.jsonl:5: is not a pair"):
        pair_rows(data, root, tmp_path / "parallel")


def test_bad_rows_leave_no_table(tmp_path: Path) -> None:
    data, root, folder = _data(tmp_path)
    write_jsonl(tmp_path / "rows.jsonl", [*ROWS, {"query": "alone"}])
    with pytest.raises(InputError, match=r"rows.jsonl:5: is not a pair"):
        pair_rows(data, root, folder)
    assert not list(folder.glob("*.arrow"))


def test_a_full_disk_is_one_clear_error_and_leaves_no_table(tmp_path: Path) -> None:
    data, root, folder = _data(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(TrainingError, match=r"the rows cannot be written \(.*Free some space"):
            pair_rows(data, root, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(folder.iterdir())
    assert len(pair_rows(data, root, folder)) == 4


GROWTH = """
import gc, json, sys
from pathlib import Path
import pyarrow
from care_trainer.config import Data
from care_trainer.data.table import pair_rows
from care_trainer.data.sampling import EpochSampler

def private():
    gc.collect()
    pyarrow.default_memory_pool().release_unused()  # what is kept for the next allocation is not needed
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

def epoch(name):
    root = Path(sys.argv[1])
    rows = pair_rows(Data(files=(name,), weights={"b": 0.5}), root, root / "rows")
    columns, characters = rows.columns, 0
    for batch in EpochSampler(columns, 64, False, weights=rows.weights):
        read = columns.__getitems__(batch)
        characters += sum(len(row["query"] + row["positive"] + row["negatives"][0]) for row in read)
    return characters

few = epoch("few.jsonl")
before = private()
many = epoch("many.jsonl")
print(json.dumps({"few": few, "many": many, "grown": private() - before}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_an_epoch_over_a_corpus_needs_a_fraction_of_its_size_in_memory(tmp_path: Path) -> None:
    def rows(count: int) -> list[dict[str, Any]]:
        text = "高血压患者饮食上要注意什么" * 30
        return [
            {"query": f"{at}", "pos": [f"{at}{text}"], "neg": [f"-{at}{text}"], "source": "ab"[at % 2]}
            for at in range(count)
        ]

    write_jsonl(tmp_path / "few.jsonl", rows(4_000))  # fills the buffers of reader and writer, which do not grow
    size = write_jsonl(tmp_path / "many.jsonl", rows(30_000)).stat().st_size
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", GROWTH, str(tmp_path)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
    assert found["many"] > 0.7 * size / 3, "the epoch read three quarters of the rows; a character is three bytes"
    assert found["grown"] < size / 8, f"{size} bytes of JSONL"


def test_a_sampler_takes_the_weights_of_a_table(tmp_path: Path) -> None:
    rows = pair_rows(*_data(tmp_path, weights={"a": 2.0, "c": 0.0}))
    drawn = sorted(row for batch in EpochSampler(rows.columns, 2, False, weights=rows.weights) for row in batch)
    assert drawn == [0, 0, 1, 1, 2]


def test_a_column_that_training_does_not_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    row = {"query": "q", "positive": "p", "negative_1": "n", "source": "s", "licence": "MIT", "hard": ["x"], "id": 1}
    write_jsonl(tmp_path / "rows.jsonl", [row])
    with caplog.at_level("WARNING", logger="care_trainer"):
        pair_rows(Data(files=("rows.jsonl",)), tmp_path, tmp_path / "rows")
    assert caplog.messages == ["rows.jsonl: training does not read 'hard', 'id'"]
