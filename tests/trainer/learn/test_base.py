"""Transformers as learned query encoders: from a table and from a pretrained one, continued, updated, refused."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from care_trainer.learn.learn import LearnReport, learn
from care_trainer.learn.settings import SMALL, AlignSettings, LearnSettings
from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.cli import care
from care_qdrant.errors import InputError, MissingExtra, ModelError
from care_qdrant.model.folder import verify_checkpoint
from care_qdrant.model.pair import CareModel
from care_qdrant.search.retriever import Retriever
from tests import tiny
from tests.trainer.learn.collections import WordModel, word_texts, write_langchain

ALIGN = AlignSettings(max_tokens=48, token_dropout=0.0, learning_rate=3e-3, batch=32, epochs=3)
SETTINGS = LearnSettings(vocabulary=200, batch=64, epochs=12, learning_rate=2e-2, seed=3, align=ALIGN)
TEXTS = word_texts(500)


def collection(dim: int = 48, seed: int = 0, texts: list[str] = TEXTS, **options: Any) -> QdrantClient:
    client = QdrantClient(":memory:")
    write_langchain(client, texts, WordModel(seed, dim).encode(texts), **options)
    return client


def found_by_words(client: QdrantClient, folder: Path, **options: Any) -> float:
    """Return the fraction of documents that a search for their second sentence finds among the first ten."""
    questions = [text.split("。")[1] for text in TEXTS[:100]]
    hits = Retriever(client, "articles", CareModel.load(folder), **options).search(questions, 10)
    return float(np.mean([any(hit.text == text for hit in one) for one, text in zip(hits, TEXTS, strict=False)]))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[QdrantClient, Path, LearnReport]:
    """One collection, its small transformer and the report. Read only."""
    client, folder = collection(), tmp_path_factory.mktemp("small") / "queries"
    return client, folder, learn(client, "articles", folder, settings=SETTINGS, base=SMALL)


@pytest.mark.timeout(300)
def test_a_small_transformer_starts_from_a_table_and_finds_documents(
    small: tuple[QdrantClient, Path, LearnReport],
) -> None:
    client, folder, report = small
    assert report.registered and report.layers and report.base == SMALL and report.tokens == "collection"
    assert report.before is not None and report.before.mrr > 0.5  # random layers would find a few of 500
    assert report.held_out.mrr > report.before.mrr - 0.05 and not report.trained_again
    assert [row["step"] for row in report.history] == sorted(row["step"] for row in report.history)
    card = verify_checkpoint(folder)
    assert card.saved_sides == ("query",) and card.query.pooling == "mean"
    assert found_by_words(client, folder) > 0.8
    with pytest.raises(ModelError, match="encodes queries only"):
        CareModel.load(folder).encode_document(["心痛"])


@pytest.mark.timeout(300)
def test_the_query_side_of_a_care_folder_learns_the_vectors_of_another_model(
    small: tuple[QdrantClient, Path, LearnReport], tmp_path: Path
) -> None:
    """Another width, another space, a named vector under Dot, wider than the learned space."""
    client = collection(96, seed=5, vector_name="openai", distance=models.Distance.DOT)
    settings = replace(SETTINGS, width=64)
    report = learn(client, "articles", tmp_path / "queries", settings=settings, base=str(small[1]))
    assert report.registered and report.dim == 96 and report.tokens == "base"
    assert report.before is not None and report.held_out.mrr > report.before.mrr
    assert found_by_words(client, tmp_path / "queries", vector_name="openai") > 0.7


@pytest.mark.timeout(300)
def test_an_update_continues_from_the_layers(small: tuple[QdrantClient, Path, LearnReport], tmp_path: Path) -> None:
    texts = [*TEXTS, *word_texts(200, seed=1)]
    client = collection(texts=texts)
    settings = replace(SETTINGS, align=replace(ALIGN, learning_rate=3e-4, epochs=1))
    report = learn(client, "articles", tmp_path / "queries", settings=settings, start=small[1])
    assert report.layers and report.base is None and report.tokens == "earlier"
    assert report.new_documents is not None and report.new_documents.queries == 200
    assert report.new_documents.recall_at_10 > 0.7 and report.registered
    with pytest.raises(InputError, match="leave the base 'small' out"):
        learn(client, "articles", tmp_path / "again", settings=settings, start=small[1], base=SMALL)


RUN = """
import sys
from pathlib import Path
from qdrant_client import QdrantClient
from care_trainer.learn.learn import learn
from tests.trainer.learn.test_base import ALIGN, SETTINGS, replace

def show(part, done, total):
    print(part, done, flush=True)

settings = replace(SETTINGS, align=replace(ALIGN, checkpoint_minutes=0.0))
output = Path(sys.argv[2])
learn(QdrantClient(path=sys.argv[1]), "articles", output, settings=settings, base=sys.argv[3], on_progress=show,
      force=True)
"""


@pytest.mark.timeout(400)
def test_a_killed_run_is_continued_to_the_same_encoder(
    small: tuple[QdrantClient, Path, LearnReport], tmp_path: Path
) -> None:
    client = QdrantClient(path=str(tmp_path / "qdrant"))
    write_langchain(client, TEXTS, WordModel(5, 64).encode(TEXTS))
    client.close()
    command = [sys.executable, "-c", RUN, str(tmp_path / "qdrant"), str(tmp_path / "killed"), str(small[1])]
    steps, kills = [], [15, None]
    for kill in kills:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            seen = []
            for line in process.stdout:
                part, done = line.split()
                seen += [int(done)] if part == "training" else []
                if kill is not None and seen and seen[-1] >= kill:
                    os.kill(process.pid, signal.SIGKILL)
                    break
        steps.append(seen)
        assert process.returncode == (0 if kill is None else -signal.SIGKILL)
    assert steps[0][0] == 1 and 10 < steps[1][0] <= 16
    settings = replace(SETTINGS, align=replace(ALIGN, checkpoint_minutes=0.0))
    client = QdrantClient(path=str(tmp_path / "qdrant"))
    whole = learn(client, "articles", tmp_path / "whole", settings=settings, base=str(small[1]), force=True)
    client.close()
    assert steps[1][-1] == whole.steps and not (tmp_path / ".killed.learning").exists()
    questions = [text.split("。")[0] for text in TEXTS[:50]]
    first, second = (CareModel.load(tmp_path / name).encode_query(questions) for name in ("killed", "whole"))
    np.testing.assert_allclose(first, second, atol=1e-5)


@pytest.mark.timeout(300)
def test_the_command_trains_a_plain_bert_folder(tmp_path: Path) -> None:
    tiny.query_tower(tmp_path / "bert")
    client = QdrantClient(path=str(tmp_path / "qdrant"))
    write_langchain(client, TEXTS, WordModel().encode(TEXTS))
    client.close()
    arguments = ["learn", "articles", "--path", str(tmp_path / "qdrant"), "--base", str(tmp_path / "bert-base")]
    done = CliRunner().invoke(care, [*arguments, "--output", str(tmp_path / "queries"), "--force"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["layers"] and report["dim"] == 48 and report["before"]["queries"] == 50
    assert "What the layers gained" in (tmp_path / "queries" / "learn" / "report.md").read_text("utf-8")
    assert CareModel.load(tmp_path / "queries").encode_query(["高血压"]).shape == (1, 48)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("there-is-none", "there is no such folder"),
        ("empty", "expected a sentence-transformers model, a BERT-like transformer or a CARE folder"),
        ("table", "is a table of token vectors, without layers"),
        ("llm", "is a 'qwen3', which reads in one direction"),
        ("llm-base", "is a 'qwen3', which reads in one direction"),
    ],
)
def test_what_is_no_base(base: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    if base == "table":
        tiny.static_tower(tmp_path / "table")
    elif base.startswith("llm"):
        tiny.document_tower(tmp_path / "llm")
    with pytest.raises((InputError, ModelError), match=message):
        learn(collection(), "articles", tmp_path / "queries", settings=SETTINGS, base=str(tmp_path / base))


def test_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "care_trainer.learning", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"care learn --base needs datasets, .*pip install '.\[train\]'"):
        learn(collection(), "articles", tmp_path / "queries", settings=SETTINGS, base=SMALL)


def test_a_base_and_an_update_are_refused_together() -> None:
    refused = CliRunner().invoke(care, ["learn", "articles", "--base", "small", "--update"])
    assert refused.exit_code == 2 and "--base starts anew" in refused.stderr
