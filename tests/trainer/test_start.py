"""`care-train start`: no text on both sides of the split, one command from pairs to a table, which also resumes."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from care_trainer.cli import care_train
from care_trainer.config import load_run
from care_trainer.data.read import Pair, plain_text
from care_trainer.data.report import leaks
from care_trainer.start import (
    BOTH,
    INCLUDED_HAS_READ,
    RESULT,
    SCRATCH,
    Difference,
    Result,
    advice,
    differences_of,
    forecasting,
    measure,
    prepare,
    split,
)
from care_trainer.training.context import Report
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from care_qdrant.errors import InputError
from care_qdrant.measures import Estimate
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.hub import find_folder
from tests.trainer.tiny_run import pairs, write_jsonl

WORDS = st.sampled_from([f"text {number}" for number in range(12)])


def texts(found: Sequence[Pair]) -> set[str]:
    return {plain_text(text) for pair in found for text in (pair.query, pair.positive)}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.builds(Pair, WORDS, WORDS, st.lists(WORDS, max_size=2).map(tuple)), min_size=1, max_size=20),
    st.integers(1, 8),
    st.integers(0, 3),
)
def test_no_text_is_on_both_sides(read: list[Pair], wanted: int, seed: int) -> None:
    train, held_out = split(read, wanted, seed)
    assert len(held_out) <= wanted and len(train) + len(held_out) == len(read)
    assert not texts(train) & texts(held_out)
    assert not {plain_text(text) for pair in train for text in pair.negatives} & texts(held_out)
    assert split(read, wanted, seed) == (train, held_out)


def test_pairs_that_differ_in_blanks_stay_together() -> None:
    read = [Pair("a b", "one"), Pair("ab", "two"), Pair("c", "t wo"), Pair("d", "three")]
    _, held_out = split(read, 3, 0)
    assert [pair.query for pair in held_out] in (["a b", "ab", "c"], ["d"])


def test_a_pair_with_a_negative_a_row_is_judged_once(tmp_path: Path) -> None:
    rows = [row | {"negatives": [text]} for row in pairs() for text in ("头晕", "发热")]
    prepare(write_jsonl(tmp_path / "faq.jsonl", rows), tmp_path / "faq", held_out=20)
    lines = (tmp_path / "faq/data/held-out/qrels.jsonl").read_text().splitlines()
    assert len(set(lines)) == len(lines) == 10


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.sampled_from(["faq", "rows", "base", "joint", '题\U0001f600"\\']))
def test_any_number_of_pairs_in_any_folder_is_prepared_or_refused(count: int, name: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        file = write_jsonl(Path(root) / "faq.jsonl", ({"query": f"问{n}", "positive": f"答{n}"} for n in range(count)))
        if count < 40:
            with pytest.raises(InputError, match="give more pairs"):
                prepare(file, Path(root) / name)
        else:
            run = load_run(prepare(file, Path(root) / name).config)
            assert run.output == str(Path(root) / name / "run") and name in run.name


def test_a_file_is_prepared_once_and_another_one_refused(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "faq.jsonl", pairs())
    prepared = prepare(file, tmp_path / "faq", held_out=10)
    assert (prepared.pairs, prepared.held_out, prepared.base) == (38, 10, "built-in")
    assert prepared.licenses == {"CC0": 48}
    assert prepared.documents >= 10
    run = load_run(prepared.config)
    assert (run.query.pooling, run.query.base, run.dim) == ("own", "built-in", CareModel.load().dim)
    rows = [json.loads(line) for line in (tmp_path / "faq/data/train.jsonl").read_text().splitlines()]
    assert all(row["license"] == "CC0" for row in rows)
    assert prepare(file, tmp_path / "faq") == prepared
    write_jsonl(file, pairs()[:40])
    with pytest.raises(InputError, match="another file"):
        prepare(file, tmp_path / "faq")


def test_held_out_questions_search_among_answers_of_the_training_which_leak_nothing(tmp_path: Path) -> None:
    prepared = prepare(write_jsonl(tmp_path / "faq.jsonl", pairs()), tmp_path / "faq", held_out=10)
    data = tmp_path / "faq/data"
    trained, searched, judged = (
        [json.loads(line) for line in (data / name).read_text().splitlines()]
        for name in ("train.jsonl", "held-out/corpus.jsonl", "held-out/qrels.jsonl")
    )
    answers, texts = {row["positive"] for row in trained}, {row["text"] for row in searched}
    assert answers < texts and prepared.documents == len(searched)
    relevant = {row["document_id"] for row in judged}
    own = {row["text"] for row in searched if row["id"] in relevant}
    assert own and not own & answers
    run = load_run(prepared.config)
    assert leaks(run) == []
    with (data / "train.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"query": "another", "positive": min(own)}) + "\n")
    assert leaks(run) == [f"pairs: {min(own)[:60]}"]


def test_licenses_are_counted_and_a_language_that_is_not_read_starts_from_scratch(tmp_path: Path) -> None:
    rows = [
        {"query": f"что такое диабет {n}", "positive": f"это {n}", "license": "free" if n % 2 else "paid"}
        for n in range(90)
    ]
    prepared = prepare(write_jsonl(tmp_path / "faq.jsonl", rows), tmp_path / "faq")
    assert (prepared.licenses, prepared.base) == ({"paid": 45, "free": 45}, SCRATCH)
    assert [stage.kind for stage in load_run(prepared.config).stage] == ["static", "align", "joint"]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"query": f"q{n}", "positive": "the only answer"} for n in range(40)], "only 0 of 40 pairs can be held out"),
        ([{"sentence1": "a", "sentence2": "b", "score": 1.0}], "1 pair of texts with a score"),
    ],
)
def test_pairs_that_cannot_be_split_are_refused(tmp_path: Path, rows: list[dict[str, object]], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        prepare(write_jsonl(tmp_path / "faq.jsonl", rows), tmp_path / "faq")


def test_a_pair_is_measured_as_it_is_searched(tmp_path: Path) -> None:
    prepared = prepare(write_jsonl(tmp_path / "faq.jsonl", pairs()), tmp_path / "faq", held_out=12)
    result = measure(load_run(prepared.config), find_folder("built-in"), "built-in")
    assert list(result.ndcg_at_10) == ["before", "before and BM25", "BM25", "after", "after and BM25"]
    assert result.ndcg_at_10["before"] == result.ndcg_at_10["after"]
    assert [(each.search, each.other, each.verdict) for each in result.differences[:2]] == [
        ("after", "before", "no clear difference"),
        ("after and BM25", "before and BM25", "no clear difference"),
    ]
    assert result.differences[0].gain == Estimate(0, 0, 0)
    assert all(
        0.5 < found.mean <= 1 for found in result.ndcg_at_10.values()
    )  # twelve questions that repeat the answers


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.01, 0.2, "better"),
        (-0.2, -0.01, "worse"),
        (-0.01, 0.2, "no clear difference"),
        (0.0, 0.2, "no clear difference"),
        (-0.2, 0.0, "no clear difference"),
    ],
)
def test_a_difference_is_clear_where_its_interval_leaves_0_out(low: float, high: float, verdict: str) -> None:
    found = Difference("after", "before", Estimate((low + high) / 2, low, high))
    [line] = differences_of(Result("faq", {}, {}, [found]))
    assert line.startswith(f"after against before: {verdict} (")


@given(st.floats(0.01, 100), st.integers(1, 50), st.integers(60, 10_000), st.floats(0, 500))
def test_the_first_steps_of_a_stage_tell_what_the_others_take(
    seconds: float, first: int, steps: int, compiling: float
) -> None:
    """Also after a resume, and whatever the first step took beside its own work."""
    told: list[tuple[str, float]] = []
    now = compiling
    report = forecasting(lambda *_: None, lambda *found: told.append(found), lambda: now)
    for step in range(first, min(first + 40, steps + 1)):
        report("joint", step, steps, 0.5, 100)
        now += seconds
    [(stage, minutes)] = told or [("joint", 0.0)]
    assert stage == "joint"
    assert not told or minutes == pytest.approx((steps - first - 12) * seconds / 60, rel=1e-6, abs=1e-9)
    assert bool(told) == (steps - first >= 12)


@pytest.mark.parametrize(("steps", "is_long"), [(20, False), (10**12, True)])
def test_a_long_stage_says_early_what_it_takes_and_how_to_do_less(
    steps: int, is_long: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*_: object, report: Report, **__: object) -> None:
        for step in range(1, 20):
            report("joint", step, steps, 0.5, 100)
        raise InputError("the training would go on here")

    monkeypatch.setattr("care_trainer.recipe.run_stages", begin)
    rows = [{"query": f"问题 {n}", "positive": f"答案 {n}" * 60} for n in range(60)]
    file = write_jsonl(tmp_path / "faq.jsonl", rows)
    begun = CliRunner().invoke(care_train, ["start", str(file), "--output", str(tmp_path / "faq")])
    assert str(begun.exception) == "the training would go on here"
    assert ("more minutes of CPU; for less, Ctrl-C, lower 'epochs'" in begun.stderr) == is_long


@pytest.mark.parametrize(
    ("scores", "command"),
    [
        (
            {"before": 0.7, "after": 0.928, "BM25": 0.8, "after and BM25": 0.841},
            "care ingest CORPUS --model faq --no-bm25",
        ),
        ({"after": 0.8, "BM25": 0.8, "after and BM25": 0.9}, "care ingest CORPUS --model faq"),
        (
            {"before": 0.9, "after": 0.8, "BM25": 0.1, "after and BM25": 0.7},
            "care ingest CORPUS --model built-in --no-bm25",
        ),
        (
            {"before": 0.1, "after": 0.2, "BM25": 0.9, "after and BM25": 0.7},
            "care ingest CORPUS --model faq\ncare search QUERY --model faq --mode sparse",
        ),
        (
            {"before": 0.7, "before and BM25": 0.9, "BM25": 0.8, "after": 0.7, "after and BM25": 0.85},
            "care ingest CORPUS --model built-in",
        ),
    ],
)
def test_another_search_is_recommended_only_where_it_is_clearly_better(scores: dict[str, float], command: str) -> None:
    measured = {name: Estimate(value, value, value) for name, value in scores.items()}

    def said(noise: float) -> list[str]:
        gains = {name: scores[BOTH] - value for name, value in scores.items() if name != BOTH}
        differences = [
            Difference(BOTH, name, Estimate(gain, gain - noise, gain + noise)) for name, gain in gains.items()
        ]
        return advice(Result("faq", measured, measured, differences), "built-in").split("\n", 1)

    assert said(noise=0.001)[1] == command
    assert said(noise=0.001)[0].startswith(f"recommended: {max(scores, key=lambda name: scores[name])} ")
    assert said(noise=0.5)[1] == "care ingest CORPUS --model faq"
    assert "no other search is clearly better" in said(noise=0.5)[0]


@pytest.mark.slow
@pytest.mark.timeout(600)  # trains the built-in pair's encoders
def test_one_command_goes_from_pairs_to_a_table_and_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_jsonl(tmp_path / "faq.jsonl", pairs())
    prepare(file, Path("faq"), held_out=10)
    config = Path("faq/start.toml")
    config.write_text(config.read_text().replace("epochs = 4", "epochs = 1"), encoding="utf-8")
    first = CliRunner().invoke(care_train, ["start", "faq.jsonl", "--output", "faq"], catch_exceptions=False)
    assert "after and BM25" in first.stdout and "after against before: " in first.stdout
    assert "recommended: " in first.stdout and "care ingest CORPUS --model " in first.stdout
    assert INCLUDED_HAS_READ in first.stdout
    assert "CC0 48" in first.stderr and "of the evaluation nDCG@10" in first.stderr and "CPU minutes" in first.stderr
    result = json.loads(Path("faq", RESULT).read_text())
    assert set(result) == {"model", "ndcg_at_10", "recall_at_10", "differences"}
    assert CareModel.load(result["model"]).alpha == CareModel.load().alpha is not None, (
        "as the model that it goes on from"
    )
    again = CliRunner().invoke(care_train, ["start", "faq.jsonl", "--output", "faq"], catch_exceptions=False)
    assert again.stdout == first.stdout
    assert "is trained already" in again.stderr and "is trained already" not in first.stderr
