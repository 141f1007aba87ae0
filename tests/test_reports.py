"""The report of a command as text and as JSON."""

import json
from dataclasses import asdict, dataclass, field

import pytest

from care_qdrant.console.reports import show_report
from care_qdrant.versions.copy import Copied, KnownItems
from care_qdrant.versions.promote import PromotionReport
from care_qdrant.versions.publish import PublicationReport


@dataclass(frozen=True)
class Report:
    collection: str = "articles"
    points: int = 12_345
    share: float = 0.98765
    is_whole: bool = True
    stale: int = 0
    stopped: str | None = None
    problems: tuple[str, ...] = ("two texts changed", "one is gone")
    quality: dict[str, float] = field(default_factory=lambda: {"recall": 0.5})
    widths: tuple[dict[str, float], ...] = ({"hnsw_ef": 64, "recall": 0.75}, {"hnsw_ef": 128, "recall": 1.0})


def test_a_report_is_text_for_people_and_one_line_of_json_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_report(Report(), as_json=True)
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line) == json.loads(json.dumps(asdict(Report())))
    show_report(Report())
    shown = [line.split(None, 1) for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == ["collection", "articles"] and shown[1] == ["points", "12,345"] and ["stale", "0"] in shown
    assert ["problems", "two texts changed; one is gone"] in shown and ["recall", "0.5"] in shown
    assert ["widths", "hnsw ef 64, recall 0.75; hnsw ef 128, recall 1"] in shown
    assert not any(name == "stopped" for name, *_ in shown), "what says nothing is left out"


COPIED = Copied(points=9, added=4, changed=2, unchanged=3, deleted=1, compared=8, sample=[1, 2, 3])


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (
            PublicationReport("docs", "live", "live_v2", "live_v1", COPIED, KnownItems(8, 8), ["live_v0"], 1.5),
            '{"source": "docs", "alias": "live", "version": "live_v2", "replaces": "live_v1", "points": 9, "added": 4, '
            '"changed": 2, "unchanged": 3, "deleted": 1, "compared": 8, "known_items": {"asked": 8, "found": 8}, '
            '"deleted_versions": ["live_v0"], "seconds": 1.5, "dry_run": false}',
        ),
        (
            PromotionReport("docs", "docs", COPIED, 1.5, dry_run=True),
            '{"source": "docs", "target": "docs", "points": 9, "added": 4, "changed": 2, "unchanged": 3, '
            '"compared": 8, "seconds": 1.5, "dry_run": true}',
        ),
    ],
)
def test_the_fields_of_an_inner_report_are_printed_in_its_place(
    capsys: pytest.CaptureFixture[str], report: object, line: str
) -> None:
    show_report(report, as_json=True)
    assert capsys.readouterr().out == line + "\n"
