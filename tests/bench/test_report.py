"""How the pages of results look: on a phone, and those that are committed."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from care_benchmarks import report
from care_benchmarks.comparison import TaskComparison
from care_benchmarks.results import load_result
from care_benchmarks.statistics import compare_with_base, mean_interval

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two results with long names."""
    scores = {
        "before-the-change/care-nano, document encoder twice": [0.1, 0.2, 0.9],
        "after-the-change/care-nano-trained-on-our-own-questions": [0.4, 0.5, 0.7],
    }
    base = next(iter(scores))
    means = {name: sum(values) / len(values) for name, values in scores.items()}
    intervals = {name: mean_interval(values) for name, values in scores.items()}
    task = TaskComparison("clinic-Retrieval", "nDCG@10", means, intervals, compare_with_base(base, scores))
    page = tmp_path_factory.mktemp("pages") / "compared.html"
    report.write_comparison([task], page)
    return page


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("name", ["compared", "sample"])
def test_no_page_scrolls_sideways_on_a_phone(name: str, comparison: Path, tmp_path: Path) -> None:
    page = comparison if name == "compared" else RESULTS / name / "report.html"
    said = "<script>let d = document.documentElement; parent.document.title = d.scrollWidth - d.clientWidth</script>"
    inside = html.escape(page.read_text(encoding="utf-8").replace("</body>", f"{said}</body>"))
    frame = tmp_path / "frame.html"  # a window of Chromium is at least 500 wide, a frame is not
    frame.write_text(f'<title>?</title><iframe style="width:390px" srcdoc="{inside}"></iframe>', encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}")
    command = [str(CHROMIUM), *options, "--virtual-time-budget=5000", "--dump-dom", frame.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    assert re.findall("<title>(.*?)</title>", shown)[0] == "0"


def test_committed_reports_have_the_layout_of_this_version() -> None:
    """`care-bench report FOLDER` writes them again."""
    template = Path(report.__file__).parent / "templates" / "style.html.j2"
    style = template.read_text(encoding="utf-8").strip()
    pages = sorted(RESULTS.glob("*/report.html"))
    assert len(pages) > 1
    assert [page.parent.name for page in pages if style not in page.read_text(encoding="utf-8")] == []


def test_the_markdown_report_says_how_much_was_judged(tmp_path: Path) -> None:
    result = load_result(RESULTS / "dev")
    report.write_report(result, tmp_path)
    markdown = (tmp_path / report.MARKDOWN_FILE).read_text(encoding="utf-8")
    table = re.findall(r"## Labels\n.*?(?=\n## )", markdown, re.DOTALL)
    assert len(table) == 1
    system = result.systems[0]
    score = system.score("dev-Retrieval")
    assert score
    judged = 100 * score.measures["Judged@10"]
    assert f"| dev-Retrieval | {system.name} | {judged:.2f} |" in table[0]
    assert "dev-Rerank" not in table[0], "every candidate of a reranking task is judged"
