"""The report of a command on a terminal and in a pipe."""

import json
import sys
from dataclasses import asdict, dataclass, field

import pytest

from care_qdrant.console.reports import show_report


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


def test_a_terminal_gets_lines_and_a_pipe_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_report(Report())
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(asdict(Report())))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_report(Report())
    shown = [line.split(None, 1) for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == ["collection", "articles"] and shown[1] == ["points", "12,345"] and ["stale", "0"] in shown
    assert ["problems", "two texts changed; one is gone"] in shown and ["recall", "0.5"] in shown
    assert ["widths", "hnsw ef 64, recall 0.75; hnsw ef 128, recall 1"] in shown
    assert not any(name == "stopped" for name, *_ in shown), "what says nothing is left out"
