"""Sources with tasks and scores through the stages, and both geometries from the base to the exported folder."""

from pathlib import Path

import numpy as np
import pytest
from care_trainer import recipe
from care_trainer.config import Run
from care_trainer.export.checkpoint import export
from care_trainer.models import towers
from care_trainer.training.callbacks import read_losses
from sentence_transformers import SentenceTransformer

from care_qdrant.errors import InputError
from care_qdrant.model.care_model import CareModel
from tests.trainer.tiny_run import pairs, stage, tiny_run, write_jsonl

TASKS = ["tasks={ sts = { query = '同：', document = '同：' }, rerank = { query = '排：' } }"]
BY_TASK = ["data.pairs.tasks={ 'sts.jsonl' = 'sts', b = 'rerank' }", "data.pairs.files=['pairs.jsonl', 'sts.jsonl']"]
TEXTS = [row["query"] for row in pairs()[:6]]


def _with_scores(run: Run) -> Run:
    rows = [
        {"sentence1": row["query"], "sentence2": row["positive"], "score": at % 3} for at, row in enumerate(pairs())
    ]
    write_jsonl(Path(run.data_root) / "sts.jsonl", rows)
    return run


def test_sources_with_tasks_and_scores_train_and_their_prompts_are_exported(tmp_path: Path) -> None:
    by_source = {"batch_by_source": True, "hard_negatives": 1, "max_steps": 6}
    stages = stage("supervised", **by_source), stage("joint", **by_source, cached=True)
    run = _with_scores(tiny_run(tmp_path, *stages, overrides=[*TASKS, *BY_TASK]))
    records = recipe.run_stages(run)
    assert [record["metrics"]["steps"] for record in records] == [6, 6]
    export(run, "")
    model = CareModel.load(Path(run.output) / run.name, precision="fp32")
    plain, instructed = model.encode_query(TEXTS), model.encode_query(TEXTS, prompt=model.query_prompt("rerank"))
    trained = towers.load(recipe.newest(run, "query"))
    np.testing.assert_allclose(instructed, trained.encode(TEXTS, prompt="排："), atol=1e-5)
    assert not np.allclose(plain, instructed)


def test_a_symmetric_encoder_reads_documents_with_their_own_prompt(tmp_path: Path) -> None:
    """It is trained, scored and exported with that prompt, for example e5."""
    trained = []
    for number, prompt in enumerate(["", "答："]):
        prompts = ["symmetric='query'", "query.prompt='问：'", f"document.prompt='{prompt}'"]
        run = tiny_run(tmp_path / str(number), stage("supervised", hard_negatives=1, max_steps=3), overrides=prompts)
        recipe.run_stages(run)
        export(run, "")
        model = CareModel.load(Path(run.output) / run.name, precision="fp32")
        encoder = towers.load(recipe.newest(run, "query"))
        np.testing.assert_allclose(model.encode_document(TEXTS), encoder.encode(TEXTS, prompt=prompt), atol=1e-5)
        np.testing.assert_allclose(model.encode_query(TEXTS), encoder.encode(TEXTS, prompt="问："), atol=1e-5)
        trained.append(encoder.encode(TEXTS))
    assert not np.allclose(*trained, atol=1e-4), "the positives were read without their prompt"


def test_stored_documents_refuse_what_would_change_them(tmp_path: Path) -> None:
    frozen = stage("joint", freeze_document=True, batch_by_source=True)
    with pytest.raises(InputError, match=r"stage.joint: its documents are encoded once, with one prompt; task sts has"):
        tiny_run(tmp_path, frozen, overrides=[*TASKS, *BY_TASK])
    again = _with_scores(tiny_run(tmp_path / "2", frozen, overrides=BY_TASK[1:]))
    with pytest.raises(InputError, match=r"stage joint: pairs with a score need a document encoder that trains"):
        recipe.run_stages(again)


@pytest.mark.parametrize("kind", ["document", "align", "joint", "frozen"])
def test_a_stage_of_a_cut_pair_trains_and_keeps_its_geometry(tmp_path: Path, kind: str) -> None:
    own = {"freeze_document": True} if kind == "frozen" else {"matryoshka": [48, 32]} if kind == "document" else {}
    negatives = {} if kind == "align" else {"hard_negatives": 1}
    stages = [stage("joint" if kind == "frozen" else kind, **own, **negatives)]
    run = tiny_run(tmp_path, *stages, overrides=['geometry="cut"'])
    (record,) = recipe.run_stages(run)
    assert np.isfinite([loss for _, loss in read_losses(Path(run.output) / record["stage"])]).all()
    document = towers.load(recipe.newest(run, "document"))
    vectors, whole = document.encode(TEXTS), _whole(document, TEXTS)
    np.testing.assert_allclose(vectors, whole[:, :32] / np.linalg.norm(whole, axis=1, keepdims=True), atol=1e-6)
    assert np.linalg.norm(vectors, axis=1).max() < 0.99


def test_a_cut_pair_is_scored_and_exported_by_dot_product(tmp_path: Path) -> None:
    scored = {"evaluate": True, "learning_rate": 1e-2, "max_steps": 12, "hard_negatives": 1}
    run = tiny_run(tmp_path, stage("align"), stage("joint", **scored), overrides=['geometry="cut"'])
    *_, record = recipe.run_stages(run)
    card = export(run, "")
    assert card.geometry == "cut"
    model = CareModel.load(Path(run.output) / run.name, precision="fp32")
    rows = pairs()
    queries, documents = (
        model.encode_query([row["query"] for row in rows]),
        model.encode_document([row["positive"] for row in rows]),
    )
    ranks = (queries @ documents.T).argsort(axis=1)[:, ::-1]
    gains = [1 / np.log2(2 + list(ranks[at]).index(at)) if at in ranks[at, :10] else 0.0 for at in range(len(rows))]
    assert record["evaluation"]["ndcg@10"] == pytest.approx(np.mean(gains), abs=1e-3)


def _whole(document: SentenceTransformer, texts: list[str]) -> np.ndarray:
    """Return the pooled vectors before they are normalised and cut."""
    features = document[1](document[0](document.preprocess(texts)))
    return features["sentence_embedding"].detach().numpy()
