"""Whole runs through the command line, with the tiny random pair, and what they leave behind."""

import json
import re
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import ir_measures
import mteb
import pytest
from care_benchmarks.cli import care_bench
from care_benchmarks.evaluation import write_trec
from care_benchmarks.results import load_per_query, load_result
from care_benchmarks.search import file_name
from care_benchmarks.tasks import directory_tasks, load_task
from click.testing import CliRunner, Result
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper

from care_qdrant.encoders.local.torch import load_sentence_transformer
from care_qdrant.errors import CareError, InputError
from tests.bench import conftest
from tests.forks import FORKS
from tests.tiny import care_folder

# Whole runs import torch, mteb and LlamaIndex: minutes where other work holds the cores.
pytestmark = pytest.mark.timeout(600)

Run = Callable[..., Result]

CONTROLS = ["--control", "bm25", "--control", "hybrid", "--control", "document", "--control", "query"]
QUICK = ["--speed", "quick"]


def bench(*arguments: object) -> Result:
    result = CliRunner(env={"CARE_PRECISION": "fp32"}).invoke(care_bench, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return conftest.write_tasks(tmp_path_factory.mktemp("tasks") / "clinic")


@pytest.fixture(scope="module")
def saved(clinic: Path, pair_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A full run, and what it printed."""
    output = tmp_path_factory.mktemp("results") / "full"
    options = ["--model", pair_folder, *CONTROLS, *QUICK]
    return output, bench("run", clinic, "--output", output, *options).stdout


def test_every_system_has_every_task_that_it_can_take(saved: tuple[Path, str]) -> None:
    result = load_result(saved[0])
    ranking, sts = ["clinic-Retrieval", "clinic-Rerank"], [f"clinic-STS-{sides}" for sides in ("qd", "qq", "dd")]
    assert {system.name: [score.task for score in system.scores] for system in result.systems} == {
        "tiny-pair": ranking + sts,
        "BM25": ranking,
        "tiny-pair + BM25": ranking,
        "tiny-pair, document encoder twice": ranking + sts,
        "tiny-pair, query encoder twice": ranking + sts,
    }
    assert {name: len(rows) for name, rows in result.comparisons.items()} == {
        **dict.fromkeys(ranking, 4),
        **dict.fromkeys(sts, 2),
    }


def test_printed_scores_are_the_saved_ones(saved: tuple[Path, str]) -> None:
    line = next(line for line in saved[1].splitlines() if line.startswith("BM25 "))
    bm25 = load_result(saved[0]).systems[1]
    assert line.split()[1:3] == [f"{100 * score.value:.2f}" for score in bm25.scores]


def test_scores_per_query_average_to_the_saved_scores(saved: tuple[Path, str]) -> None:
    result = load_result(saved[0])
    measures = {task.name: task.measure for task in result.tasks}
    systems = {system.name: system for system in result.systems}
    entries = load_per_query(saved[0])
    assert len(entries) == sum(len(system.scores) for system in result.systems)
    for entry in entries:
        score = systems[entry.system].score(entry.task)
        values = entry.scores[measures[entry.task]]
        assert score and sum(values) / len(values) == pytest.approx(score.value, abs=1e-5)


def test_a_trec_run_file_has_the_saved_scores(saved: tuple[Path, str], clinic: Path) -> None:
    qrels = {task.name: task.qrels for task in map(load_task, directory_tasks(clinic)) if task.kind != "sts"}
    for system in load_result(saved[0]).systems:
        for task in ("clinic-Retrieval", "clinic-Rerank"):
            [file] = (saved[0] / "runs" / file_name(system.name)).glob(f"{task}.trec")
            run = list(ir_measures.read_trec_run(str(file)))
            measures = [ir_measures.nDCG @ 10, ir_measures.RR @ 10]
            found = ir_measures.calc_aggregate(measures, qrels[task], run)
            score = system.score(task)
            assert score and {str(key): value for key, value in found.items()} == pytest.approx(
                {name: score.measures[name] for name in ("nDCG@10", "RR@10")}, abs=1e-9
            )


def test_an_id_with_a_blank_is_in_no_trec_run_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_trec({"q 1": {"d1": 0.5}}, tmp_path / "run.trec", "system")
    assert not (tmp_path / "run.trec").exists() and "cannot hold the id 'q 1'" in caplog.text


def mtebs_own_scores(model: Path, clinic: Path, prompts: dict[str, str] | None = None) -> dict[str, float]:
    """The scores of stock sentence-transformers by mteb's own runner, which knows neither Qdrant nor LlamaIndex."""
    with warnings.catch_warnings():
        # mteb asks sentence-transformers for the dimension by a deprecated name, and says which prompts it uses.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "Model prompts specified", UserWarning)
        wrapper = SentenceTransformerEncoderWrapper(load_sentence_transformer(model, None), model_prompts=prompts)
    wrapper.mteb_model_meta = ModelMeta.create_empty(
        overwrites={"name": "a/b", "similarity_fn_name": ScoringFunction.COSINE}
    )
    tasks = [load_task(task).task for task in directory_tasks(clinic)]
    found = mteb.evaluate(wrapper, tasks, cache=None, co2_tracker=False, show_progress_bar=False)
    return {result.task_name: result.get_score() for result in found.task_results}


def test_mtebs_own_runner_gives_the_same_scores(saved: tuple[Path, str], clinic: Path, pair_folder: Path) -> None:
    pair, _, _, document, query = load_result(saved[0]).systems
    for system, folder in ((pair, ""), (document, "document"), (query, "query")):
        ours = {score.task: score.value for score in system.scores}
        assert ours == pytest.approx(mtebs_own_scores(pair_folder / folder, clinic), abs=1e-5), system.name


def test_mtebs_own_runner_gives_the_same_scores_with_prompts_by_task(
    clinic: Path, saved: tuple[Path, str], tmp_path: Path
) -> None:
    prompts = {"retrieval": "高血压 ", "rerank": "糖尿病 ", "sts": "头痛 "}
    folder = care_folder(tmp_path / "pair", onnx=True, query_tasks=prompts, document_tasks={"sts": "头痛 "})
    output = tmp_path / "result"
    bench("run", clinic, "--output", output, "--model", folder, "--speed", "none")
    names = {"Retrieval-query": "高血压 ", "Reranking-query": "糖尿病 ", "STS-query": "头痛 ", "STS-document": "头痛 "}
    ours = {score.task: score.value for score in load_result(output).systems[0].scores}
    assert ours == pytest.approx(mtebs_own_scores(folder, clinic, names), abs=1e-5)
    plain = {score.task: score.value for score in load_result(saved[0]).systems[0].scores}
    assert any(abs(ours[task] - plain[task]) > 1e-3 for task in ours), "the prompts change nothing"


def test_symmetric_controls_have_the_parameters_of_their_encoder(saved: tuple[Path, str]) -> None:
    pair, bm25, hybrid, document, query = load_result(saved[0]).systems
    assert document.query_parameters == document.document_parameters == pair.document_parameters
    assert query.query_parameters == query.document_parameters == pair.query_parameters
    assert (bm25.query_parameters, bm25.dim) == (0, 0)
    assert hybrid.query_parameters == pair.query_parameters > 0


def test_the_document_control_searches_the_vectors_of_the_pair(saved: tuple[Path, str]) -> None:
    pair, _, _, document, query = load_result(saved[0]).systems
    assert [indexing.encoded for indexing in pair.indexing] == [5, 5]
    assert [indexing.encoded for indexing in document.indexing] == [0, 0]
    assert [indexing.encoded for indexing in query.indexing] == [5, 5]


def test_mtebs_cache_has_the_fingerprint_as_revision(saved: tuple[Path, str]) -> None:
    pair = load_result(saved[0]).systems[0]
    found = mteb.ResultCache(saved[0] / "mteb").load_results(include_remote=False)
    by_name = {model.model_name: model for model in found.model_results}
    assert by_name["care-qdrant/tiny-pair"].model_revision == pair.fingerprint
    scores = {task.task_name: task.get_score() for task in by_name["care-qdrant/tiny-pair"].task_results}
    assert scores["clinic-Retrieval"] == pytest.approx(pair.scores[0].value, abs=1e-5)


def test_speed_says_what_was_timed_and_how_often(saved: tuple[Path, str]) -> None:
    pair, bm25, *_ = (system.speed for system in load_result(saved[0]).systems)
    assert pair and bm25
    assert "CareEmbedding" in pair.path and "Retriever" in bm25.path
    assert [(load.concurrency, load.latency.samples) for load in pair.whole] == [(2, 3)]
    assert pair.encode and pair.search and bm25.encode is None
    assert pair.documents_per_second and pair.index_bytes_per_document


def test_report_is_one_file_with_chinese_text_and_charts(saved: tuple[Path, str]) -> None:
    page = (saved[0] / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img|iframe)\b|url\(\s*[\"']?http|@import", page)
    assert page.count("<svg") == 6
    assert '<td data-label="queries/s">' in page, "a phone shows rows without the head of their table"
    assert "耳鸣需要吃什么药？" in page
    verdict = page[: page.index("<h2>")]
    assert "clinic-Retrieval" in verdict
    assert "against" in verdict or "compared with" in verdict
    markdown = (saved[0] / "report.md").read_text(encoding="utf-8")
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert any(line.startswith("| BM25 | – / – | – |") for line in tables)
    assert "耳鸣" not in markdown


def test_a_report_drawn_again_is_the_same(saved: tuple[Path, str], tmp_path: Path) -> None:
    for name in ("result.json", "report.html", "report.md"):
        (tmp_path / name).write_bytes((saved[0] / name).read_bytes())
    assert bench("report", tmp_path).stdout.strip() == str(tmp_path / "report.html")
    for name in ("report.html", "report.md"):
        assert (tmp_path / name).read_bytes() == (saved[0] / name).read_bytes()


def test_without_texts_no_text_of_the_tasks_is_written(clinic: Path, pair_folder: Path, tmp_path: Path) -> None:
    options = ["--model", pair_folder, "--speed", "none", "--without-texts", "--path", tmp_path / "qdrant"]
    bench("run", clinic, "--output", tmp_path / "out", *options)
    written = [file.read_text(encoding="utf-8") for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert len(written) > 5
    for row in (*conftest.CORPUS, *conftest.QUERIES):
        assert not any(row["text"] in text for text in written)


def test_bad_data_stop_a_run_before_anything_is_encoded(clinic: Path, pair_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    conftest.write_jsonl(broken / "corpus.jsonl", conftest.CORPUS)
    conftest.write_jsonl(broken / "queries.jsonl", conftest.QUERIES)
    conftest.write_jsonl(broken / "qrels.jsonl", conftest.QRELS[:1])
    with pytest.raises(InputError, match=r"queries.jsonl:2: query 'q2' has no positive"):
        bench("run", clinic, broken, "--model", pair_folder, "--output", tmp_path / "out")
    assert not (tmp_path / "out/result.json").exists()
    assert not list((tmp_path / "out").rglob("*.sqlite"))


def test_compare_finds_a_result_equal_to_itself(saved: tuple[Path, str]) -> None:
    found = json.loads(bench("compare", saved[0], "--json").stdout)
    assert [task["task"] for task in found][:2] == ["clinic-Retrieval", "clinic-Rerank"]
    expected = load_result(saved[0]).comparisons["clinic-Retrieval"]
    assert [row["difference"] for row in found[0]["comparisons"]] == pytest.approx(
        [row.difference for row in expected], abs=1e-5
    )
    page = saved[0] / "compared" / "page.html"
    assert "full/BM25" in bench("compare", saved[0], "--output", page).stdout
    bench("compare", saved[0], "--output", page)  # its own file may be written again
    written = page.read_text(encoding="utf-8")
    assert written.count("<svg") == len(found)
    assert f"{100 * expected[0].difference:+.2f}" in written[written.index("clinic-Retrieval</h2>") :]
    assert "clinic-Retrieval" in written[: written.index("<h2>")]


def test_compare_refuses_other_data_under_the_same_name(
    saved: tuple[Path, str], pair_folder: Path, tmp_path: Path
) -> None:
    other = conftest.write_jsonl(tmp_path / "clinic/sts.jsonl", conftest.STS[:3]).parent
    bench("run", other, "--model", pair_folder, "--speed", "none", "--output", tmp_path / "other")
    with pytest.raises(InputError, match="has other data"):
        bench("compare", tmp_path / "other", saved[0])


def test_a_set_that_cannot_be_had_stops_a_run_in_one_line(pair_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"MedicalRetrieval: its data cannot be loaded .*network"):
        bench("run", "MedicalRetrieval", "--model", pair_folder, "--output", tmp_path / "out")


def test_results_of_another_version_are_refused(saved: tuple[Path, str], tmp_path: Path) -> None:
    result = json.loads((saved[0] / "result.json").read_text(encoding="utf-8"))
    del result["systems"][0]["scores"]
    (tmp_path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    with pytest.raises(InputError, match=r"systems\.0\.scores is missing"):
        load_result(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        load_result(tmp_path / "nowhere")


def test_a_symmetric_model_is_no_base_for_one_sided_controls(clinic: Path, pair_folder: Path, tmp_path: Path) -> None:
    options = ["--model", pair_folder / "query", "--control", "document"]
    with pytest.raises(CareError, match="is one encoder, not a model of two"):
        bench("run", clinic, "--output", tmp_path / "out", *options)


def test_two_tasks_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "two"):
        conftest.write_jsonl(tmp_path / folder / "dev" / "rerank.jsonl", conftest.RERANK)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="2 tasks are named dev-Rerank, after their folders; rename one"):
        bench("run", "one/dev", "two/dev", "--output", "out")
    assert not (tmp_path / "out").exists()


def test_a_device_that_is_not_here_leaves_no_result(
    clinic: Path, pair_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="device 'cuda:99': torch cannot use it here"):
        bench("run", clinic, "--model", pair_folder, "--output", "results/first", "--device", "cuda:99")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_each_line_of_the_log_is_printed_once_and_q_silences_it(
    clinic: Path, pair_folder: Path, tmp_path: Path
) -> None:
    # A process of its own: in this one the log has handlers of pytest.
    options = ["--model", str(pair_folder), "--output", str(tmp_path / "out"), "--speed", "none"]
    for quiet in ([], ["-q"]):
        command = [str(FORKS.commands / "care"), "bench", *quiet, "run", str(clinic), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
        lines = [line for line in done.stderr.splitlines() if not line.startswith("report: ")]
        assert len(lines) == len(set(lines)) and bool(lines) is not bool(quiet), lines
