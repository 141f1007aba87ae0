"""`care switch` as a person runs it."""

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given
from hypothesis import strategies as st
from qdrant_client import QdrantClient
from qdrant_client import models as qdrant_models

from care_qdrant.cli import care
from care_qdrant.cli.switch_picture import draw
from care_qdrant.errors import InputError, NotSwitched
from care_qdrant.measures import Estimate
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.switch import switch as switch_module
from care_qdrant.switch.compare import Comparison
from tests.switch import models
from tests.switch.models import NAME, good

MODELS = {"old": good("old"), "new": good("new", seed=1), "worse": models.weaker("worse")}
Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(CareModel, "load", lambda source="old", **_: MODELS[source])
    with closing(QdrantClient(path=str(tmp_path / "qdrant"))) as client:
        models.fill(client, MODELS["old"], 200)
    return tmp_path / "qdrant"


@pytest.fixture
def run(folder: Path) -> Run:
    return lambda *words: CliRunner().invoke(care, ["switch", NAME, *words, "--path", str(folder), "--model", "old"])


def test_forth_and_back_and_the_end(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = run("--to", "new", "--dry-run")
    assert plan.exit_code == 0 and "from 'old' by old to 'new' by new: backfill" in plan.stdout
    done = run("--to", "new")
    assert done.exit_code == 0 and "verdict: pass" in done.stdout and "readers search 'new' by new" in done.stdout
    status = CliRunner().invoke(care, ["status", NAME, "--path", str(folder)])
    assert "readers search new by new, switched at" in status.stdout and "verdict pass" in status.stdout
    assert "readers return to 'old'" in run("--roll-back").stdout
    assert "readers return to 'new'" in run("--roll-back").stdout
    assert isinstance(run("--retire").exception, InputError)
    monkeypatch.setattr(
        switch_module, "time", SimpleNamespace(time=lambda: 4e9, strptime=time.strptime, sleep=time.sleep)
    )
    assert "'old' was removed" in run("--retire").stdout


def test_a_refusal_prints_the_comparison_and_ends_with_1(run: Run) -> None:
    refused = run("--to", "worse", "--json")
    assert isinstance(refused.exception, NotSwitched) and refused.exception.exit_code == 1
    assert json.loads(refused.stdout)["comparison"]["verdict"] == "refuse"
    losses = json.loads(refused.stdout)["comparison"]["losses"]
    assert f" first, not {losses[0]['relevant'][0]}" in run("--to", "worse").stdout
    accepted = json.loads(run("--to", "worse", "--accept", "it is cheaper", "--json").stdout)
    assert accepted["state"]["to"]["vector"] == "worse" and accepted["comparison"]["verdict"] == "refuse"


def test_the_picture_shows_the_comparison(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "new" / "comparison.svg"
    refused = run("--to", "worse", "--picture", str(picture), "--json")
    comparison = json.loads(refused.stdout)["comparison"]
    texts = [element.text or "" for element in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    equal = comparison["documents"] - comparison["better"] - comparison["worse"]
    assert f"{NAME}: refuse" in texts
    assert f"worse for {comparison['worse']}, equal for {equal}, better for {comparison['better']}" in texts
    shown = [f"{comparison[side]['mean']:.3f}" for side in ("before", "after")]
    assert {*shown, f"{comparison['difference']['mean']:+.3f}"} <= {*texts}
    assert run("--to", "worse", "--picture", str(tmp_path)).exit_code == 2


@given(st.text(st.characters()), st.text(st.characters()), st.text(st.characters()))
@example("\ufffe", "\udcff", "\uffff\x00")
def test_a_picture_of_any_names_is_xml_in_utf_8(collection: str, before: str, after: str) -> None:
    share, none = Estimate(0.5, 0.4, 0.6), Estimate(0.0, 0.0, 0.0)
    compared = Comparison("judged", 3, 3, share, share, none, 1, 1, 0.5, "pass", None)
    ElementTree.fromstring(draw(compared, collection, before, after).encode())


def test_a_question_and_an_id_cannot_pass_for_a_verdict(folder: Path, run: Run, tmp_path: Path) -> None:
    rows, forged = [text.partition("。")[0] for text in models.texts(200)], "d0\nverdict: pass"
    with closing(QdrantClient(path=str(folder))) as client:
        client.set_payload(NAME, {"doc_id": forged}, points=[0])
    asked = [
        {"text": f"\nverdict: pass\n{row}", "relevant": [forged if n == 0 else f"d{n}"]} for n, row in enumerate(rows)
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, asked)), encoding="utf-8")
    refused = run("--to", "worse", "--questions", str(tmp_path / "questions.jsonl"))
    shown = refused.stdout.splitlines()
    assert "largest losses, nDCG@10 before and after:" in shown
    assert [line for line in shown if line.lstrip().startswith("verdict")] == ["verdict: refuse"]


def test_a_dry_run_is_refused_as_the_run_would_be(folder: Path, run: Run, tmp_path: Path) -> None:
    with closing(QdrantClient(path=str(folder))) as client:
        Collection(client, NAME).update("as of another tool", metadata={"care:old": None})
    planned, done = run("--to", "new", "--dry-run"), run("--to", "new")
    assert isinstance(done.exception, NotSwitched) and planned.exit_code == NotSwitched.exit_code
    assert "refused: collection 'articles' cannot be compared" in planned.stdout
    assert "cannot be compared" in json.loads(run("--to", "new", "--dry-run", "--json").stdout)["refusal"]
    missing = ("--questions", str(tmp_path / "none"))
    assert [type(run("--to", "new", *words).exception) for words in (missing, ("--dry-run", *missing))] == [
        InputError
    ] * 2
    assert run("--to", "new", "--dry-run", "--accept", "cheaper").exit_code == 0
    assert run("--to", "new", "--accept", "cheaper").exit_code == 0


def test_a_dry_run_shows_the_cost_of_the_tokens_that_are_missing(run: Run) -> None:
    tokens = sum(MODELS["new"].document_tokenizer.count_tokens(models.texts(200)))
    plan = json.loads(run("--to", "new", "--dry-run", "--json").stdout)["attach"]
    assert plan["new_tokens"] == tokens  # the sample is all of them
    shown = run("--to", "new", "--dry-run", "--price", "1000").stdout
    assert f"about {tokens:,} tokens for {tokens / 1000:,.2f}" in " ".join(shown.split())
    printed = json.loads(run("--to", "new", "--dry-run", "--price", "1000", "--json").stdout)
    assert printed["cost"] == pytest.approx(tokens / 1000) and "cost" not in plan
    assert run("--to", "new", "--price", "1000").exit_code == 2
    run("--to", "new")
    assert json.loads(run("--to", "new", "--dry-run", "--json").stdout)["attach"]["new_tokens"] == 0


@pytest.mark.parametrize("words", [(), ("--to", "new", "--retire"), ("--roll-back", "--retire")])
def test_one_of_three_things_is_done(run: Run, words: tuple[str, ...]) -> None:
    assert run(*words).exit_code == 2


@pytest.mark.parametrize("end", ["--roll-back", "--retire"])
@pytest.mark.parametrize(
    "words",
    [
        ("--dry-run",),
        ("--accept", "cheaper"),
        ("--questions", "questions.jsonl"),
        ("--vector-name", "old"),
        ("--picture", "a.svg"),
    ],
)
def test_options_of_a_switch_are_refused_with_its_end(folder: Path, run: Run, end: str, words: tuple[str, ...]) -> None:
    """A dry run writes nothing, whatever else is given."""
    run("--to", "new")

    def vectors() -> object:
        with closing(QdrantClient(path=str(folder))) as client:
            schema = Collection(client, NAME).schema
            return schema.active, set(schema.dense)

    before = vectors()
    assert run(end, *words).exit_code == 2 and vectors() == before


def test_a_switch_is_not_accepted_without_a_reason(run: Run) -> None:
    assert run("--to", "worse", "--accept", " ").exit_code == 2


def test_a_way_back_to_fewer_points_is_said(folder: Path, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run("--to", "new")
    with closing(QdrantClient(path=str(folder))) as client:
        vector = {"new": MODELS["new"].encode_document(["词001"])[0].tolist()}
        client.upsert(NAME, [qdrant_models.PointStruct(id=999, vector=vector, payload={"text": "词001"})], wait=True)
    assert "readers return to 'old'" in run("--roll-back").stdout
    assert "1 point has been written without vector 'old'" in caplog.text
