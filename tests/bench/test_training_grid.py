from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from care_trainer.config import Run
from care_trainer.evaluation import load_evaluator, score
from care_trainer.models import towers
from care_trainer.stages.context import silent
from care_trainer.training.loop import fit

from benchmarks.experiments.training_cells import Cell, Work, run_grid
from benchmarks.experiments.training_grid import as_markdown, lines, percentiles, resampled_means
from care_qdrant.errors import InputError
from tests.trainer.tiny_run import stage, tiny_run

PRESETS = ("full", "without-joint", "symmetric-query", "symmetric-document")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    stages = (stage(kind) for kind in ("supervised", "document", "align", "joint"))
    return tiny_run(tmp_path, *stages, overrides=[f"teacher_cache={tmp_path / 'vectors'}"])


def _cells(run: Run, output: Path, presets: Sequence[str] = PRESETS, seeds: Sequence[int] = (0,)) -> list[Cell]:
    return list(run_grid(run, presets, seeds, output, silent))


def test_cells_share_what_they_have_in_common(run: Run, tmp_path: Path) -> None:
    _cells(run, tmp_path / "grid", seeds=(0, 1))
    names = [path.name.rsplit("-", 1)[0] for path in (tmp_path / "grid" / "stages").iterdir()]
    # Twice supervised: once, and with twice the epochs in symmetric-query; the same with document.
    once_a_seed = {"base": 1, "supervised": 2, "document": 2, "align": 1, "joint": 1}
    assert {name: names.count(name) for name in once_a_seed} == {name: 2 * n for name, n in once_a_seed.items()}
    cells = tmp_path / "grid" / "cells"
    assert (cells / "full-0/align").resolve() == (cells / "without-joint-0/align").resolve()
    assert (cells / "full-0/align").resolve() != (cells / "full-1/align").resolve()


def test_a_cell_is_scored_as_the_trainer_scores_it(run: Run, tmp_path: Path) -> None:
    assert run.evaluation is not None
    for cell in _cells(run, tmp_path / "grid"):
        if cell.preset == "without-joint":
            break
    folder = tmp_path / "grid/cells/without-joint-0"

    pair = towers.pair(towers.load(folder / "align/query"), towers.load(folder / "document/document"))
    expected = score(load_evaluator(run.evaluation, Path(run.data_root)), pair)
    assert np.mean(cell.scores["nDCG@10"]) == pytest.approx(expected["ndcg@10"], abs=1e-3)
    assert np.mean(cell.scores["R@100"]) == pytest.approx(expected["recall@100"])
    assert [work.stage for work in cell.work] == ["supervised", "document", "align"]
    assert [(work.steps, work.rows) for work in cell.work] == [(3, 24)] * 3


def test_a_grid_that_was_stopped_goes_on_and_trains_nothing_twice(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def counting(*arguments: object, **options: object) -> object:
        trained.append(arguments[3].folder.name.rsplit("-", 1)[0])  # type: ignore[attr-defined]
        if len(trained) == 4:
            raise KeyboardInterrupt
        return fit(*arguments, **options)  # type: ignore[arg-type]

    for module in ("contrastive", "context", "joint"):
        monkeypatch.setattr(f"care_trainer.stages.{module}.fit", counting)
    with pytest.raises(KeyboardInterrupt):
        _cells(run, tmp_path / "grid", ("full",))
    assert trained == ["supervised", "document", "align", "joint"]
    stopped = _cells(run, tmp_path / "grid", ("full", "without-joint"))
    assert trained[4:] == ["joint"]
    monkeypatch.undo()
    assert [cell.scores for cell in stopped] == [
        cell.scores for cell in _cells(run, tmp_path / "other", ("full", "without-joint"))
    ]


def test_other_settings_are_trained_anew_where_they_differ(run: Run, tmp_path: Path) -> None:
    (before,) = _cells(run, tmp_path / "grid", ("full",))
    stages = tuple(replace(item, learning_rate=1e-2) if item.kind == "joint" else item for item in run.stage)
    (after,) = _cells(replace(run, stage=stages), tmp_path / "grid", ("full",))
    assert after.settings != before.settings
    names = [path.name.rsplit("-", 1)[0] for path in (tmp_path / "grid" / "stages").iterdir()]
    assert (names.count("align"), names.count("joint")) == (1, 2)


def test_without_an_evaluation_set_there_is_nothing_to_do(tmp_path: Path) -> None:
    run = replace(tiny_run(tmp_path, stage("align")), evaluation=None)
    with pytest.raises(InputError, match="no \\[evaluation\\]"):
        _cells(run, tmp_path / "grid", ("full",))


def _cell(preset: str, seed: int, scores: Sequence[float]) -> Cell:
    queries = [str(number) for number in range(len(scores))]
    of_measure = {measure: list(scores) for measure in ("nDCG@10", "R@100")}
    return Cell(preset, seed, "", [Work("align", 2, 16, 1.5)], queries, of_measure)


def test_the_table_is_paired_and_says_what_share_of_the_gap_is_closed() -> None:
    random = np.random.default_rng(0)
    base = random.random((3, 400)) * 0.2
    offsets = {"full": 0.3, "without-align": 0.1, "symmetric-query": 0.0, "symmetric-document": 0.4}
    cells = [_cell(preset, seed, base[seed] + offset) for preset, offset in offsets.items() for seed in range(3)]
    found = {line.preset: line for line in lines(cells)}
    line = found["without-align"]
    assert line.difference == pytest.approx(-0.2)
    assert line.interval is not None and line.interval.low == pytest.approx(-0.2, abs=1e-6), "paired: no spread is left"
    assert line.gap_closed == pytest.approx(0.25)
    assert found["full"].gap_closed == pytest.approx(0.75) and found["full"].difference is None
    assert found["symmetric-document"].gap_closed is None
    assert line.means["nDCG@10"] == pytest.approx(base.mean() + 0.1)
    row = next(row for row in as_markdown(lines(cells)).splitlines() if row.startswith("| without-align "))
    assert "-0.200 (-0.200 … -0.200)" in row and "25% (25% … 25%)" in row


def test_a_preset_without_all_seeds_is_compared_over_those_it_has() -> None:
    cells = [_cell("full", 0, [0.5, 0.5]), _cell("full", 1, [0.9, 0.9]), _cell("without-mse", 0, [0.4, 0.4])]
    line = lines(cells)[1]
    assert line.seeds == [0] and line.difference == pytest.approx(-0.1)


def test_any_preset_can_be_what_the_others_are_compared_with() -> None:
    cells = [_cell("pruned", 0, [0.5, 0.7]), _cell("kale", 0, [0.2, 0.2])]
    pruned, kale = lines(cells, against="pruned")
    assert pruned.difference is None and kale.difference == pytest.approx(-0.4)
    assert "| against pruned |" in as_markdown([pruned, kale])


def test_resampled_means_spread_over_queries_and_seeds() -> None:
    random = np.random.default_rng(0)
    seeds = np.array([0.0, 0.3, 0.6])[:, None]
    scores = np.stack([seeds + random.normal(size=(3, 200)), np.tile(random.normal(size=200), (3, 1))])
    drawn = resampled_means(scores)
    np.testing.assert_allclose(drawn.mean(axis=0), scores.mean(axis=(1, 2)), atol=0.01)
    of_seeds = np.std([0.0, 0.3, 0.6]) / np.sqrt(3)
    assert drawn[:, 0].std() > of_seeds > drawn[:, 1].std()
    interval = percentiles(drawn[:, 1])
    assert interval.low < scores[1].mean() < interval.high
    assert drawn[:, 1].std() == pytest.approx(scores[1, 0].std() / np.sqrt(200), rel=0.1)
