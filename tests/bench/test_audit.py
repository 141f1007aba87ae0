import json
from pathlib import Path

import pytest
from care_benchmarks.audit import (
    AuditSummary,
    Relabelled,
    add_judgements,
    audit,
    candidates,
    read_judgements,
    relabelled,
    write_candidates,
)

from care_qdrant.errors import InputError
from tests.bench.conftest import write_jsonl

QRELS = {"q1": {"a": 1, "b": 0}, "q2": {"c": 2}}
RUN = {"q1": {"x": 0.9, "b": 0.8, "y": 0.7, "a": 0.6, "z": 0.5}, "q2": {"c": 0.9, "x": 0.1}}
OTHER = {"q1": {"a": 0.9, "z": 0.2}}


def test_shares_count_only_what_nobody_judged() -> None:
    assert audit(QRELS, RUN) == AuditSummary(2, 50, 4 / 7, 2.0, 1.0)
    assert audit(QRELS, RUN, depth=1) == AuditSummary(2, 1, 0.5, 0.5, 0.5)
    assert audit(QRELS, {}) == AuditSummary(2, 50, 0.0, 0.0, 0.0)


def test_candidates_that_more_systems_found_come_first(tmp_path: Path) -> None:
    texts = {name: name.upper() for name in "abcxyz"}
    rows = list(candidates(QRELS, {"ours": RUN, "other": OTHER}, {"q1": "问一", "q2": "问二"}, texts))
    assert [(row.query_id, row.document_id, row.rank, row.found_by) for row in rows] == [
        ("q1", "a", 4, ["ours", "other"]),
        ("q1", "z", 5, ["ours", "other"]),
        ("q1", "x", 1, ["ours"]),
        ("q1", "y", 3, ["ours"]),
        ("q2", "c", 1, ["ours"]),
        ("q2", "x", 2, ["ours"]),
    ]
    assert [row.grade for row in rows] == [1, None, None, None, 2, None], "an irrelevant one is not judged again"
    assert write_candidates(iter(rows), tmp_path / "build" / "out.jsonl") == 6
    first = json.loads((tmp_path / "build" / "out.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert first["query"] == "问一" and first["document"] == "A" and first["label"] is None


def test_above_the_first_positive_means_of_every_system() -> None:
    rows = list(candidates(QRELS, {"ours": RUN}, {"q1": "", "q2": ""}, dict.fromkeys("abcxyz", "")))
    assert {row.document_id for row in rows if row.above_first_positive} == {"x", "y"}


def test_what_the_labels_miss_and_what_they_have_too_much() -> None:
    """Table 13: labelled = original - false positives + false negatives, for both of its rows."""
    judged = {"q1": {"a": 0, "x": 1, "y": 1, "b": 0}, "q2": {"c": 1, "x": 1}}
    found = relabelled(QRELS, judged)
    assert found == Relabelled(original=1.0, labelled=2.0, false_positives=0.5, false_negatives=1.5)
    assert found.labelled == found.original - found.false_positives + found.false_negatives


def test_judgements_come_back_in_and_old_ones_stay(tmp_path: Path) -> None:
    lines = [
        {"query_id": "q1", "document_id": "d9", "label": "A"},
        {"query_id": "q1", "document_id": "d8", "label": "C"},
        {"query_id": "q1", "document_id": "d7", "label": None},
        {"query_id": "q1", "document_id": "d1", "label": "D"},
    ]
    path = write_jsonl(tmp_path / "judged.jsonl", lines)
    assert add_judgements({"q1": {"d1": 2}, "q2": {"d2": 1}}, read_judgements(path)) == {
        "q1": {"d1": 2, "d9": 1, "d8": 0},
        "q2": {"d2": 1},
    }


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"query_id": "q1", "document_id": "d", "label": "yes"}], "label is 'yes'; expected one of S, A"),
        ([{"query_id": "q1", "document_id": "d", "label": None}], "no line has a label"),
        ([{"query_id": "q1", "document_id": "d", "label": each} for each in "AD"], "labelled differently"),
    ],
)
def test_wrong_judgements_are_refused(lines: list[dict[str, str | None]], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_judgements(write_jsonl(tmp_path / "judged.jsonl", lines))
