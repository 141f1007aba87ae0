"""From the scores of a grid's cells to the chart of the gap that its pairs close."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.experiments import gap_chart
from benchmarks.experiments.training_cells import Cell
from benchmarks.experiments.training_grid import as_json, lines

SMALL = [0.1, 0.3]
LARGE = [0.5, 0.7]


def _cell(preset: str, seed: int, scores: list[float]) -> Cell:
    return Cell(preset, seed, "", [], ["a", "b"], {"nDCG@10": scores, "R@100": scores})


def _grid(path: Path, pair: list[float], *presets: str) -> Path:
    cells = {"full": pair, "symmetric-query": SMALL, "symmetric-document": LARGE}
    found = lines([_cell(name, seed, cells[name]) for seed in (0, 1) for name in presets or cells])
    path.write_text(json.dumps({"lines": as_json(found)}), encoding="utf-8")
    return path


def test_a_chart_says_what_each_pair_closes_of_its_gap(tmp_path: Path) -> None:
    grids = [_grid(tmp_path / "1 layer.json", [0.2, 0.4]), _grid(tmp_path / "4 layers.json", [0.5, 0.7])]
    output = tmp_path / "gap.svg"
    arguments = [*map(str, grids), "--sweep", "document encoder", "--output", str(output)]
    CliRunner().invoke(gap_chart.main, arguments, catch_exceptions=False)
    shown = re.findall(r">([^<>]+)</text>", output.read_text(encoding="utf-8"))
    assert [text for text in shown if "closed" in text] == ["25% closed", "100% closed"]
    # Every query and seed gains the same, so that resampling changes nothing.
    assert [text for text in shown if "…" in text] == ["(25% … 25%)", "(100% … 100%)"]
    assert [text for text in shown if text.endswith(("layer", "layers"))] == ["1 layer", "4 layers"]
    assert {"document encoder", "document encoder on both sides", "query encoder on both sides", "pair"} <= {*shown}


def test_the_small_model_is_the_lower_end_of_the_gap(tmp_path: Path) -> None:
    found = gap_chart.read_gap(_grid(tmp_path / "grid.json", [0.2, 0.4]))
    assert (found.small, found.pair, found.large) == pytest.approx((0.2, 0.3, 0.6))


def test_a_grid_without_an_end_of_the_gap_is_refused(tmp_path: Path) -> None:
    grid = _grid(tmp_path / "grid.json", [0.2, 0.4], "full", "symmetric-query")
    done = CliRunner().invoke(gap_chart.main, [str(grid), "--sweep", "a", "--output", str(tmp_path / "gap.svg")])
    assert done.exit_code == 2 and "has no symmetric-document" in " ".join(done.output.split())
