"""A transformer student of a collection: Stage I on stored vectors, registered, searched; and what is refused."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from care_trainer.config import Run, load_run
from care_trainer.data.report import describe
from care_trainer.export.checkpoint import export
from care_trainer.recipe import run_stages
from care_trainer.training.loop import Interrupted
from llama_index.embeddings.care import CareEmbedding
from qdrant_client import QdrantClient
from safetensors.torch import load_file

from care_qdrant.errors import InputError, ModelError
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.folder import verify_checkpoint
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.retriever import Retriever
from tests.trainer.learn.collections import DIM, WordModel, word_texts, write_langchain

TEXTS = word_texts(500)
STAGE = """
[[stage]]
kind = "align"
data = "collection"
epochs = 16
batch_size = 64
learning_rate = 1e-2
temperature = 0.1
negatives = 128
token_dropout = 0.2
"""
CONFIG = """
name = "articles-queries"
output = "{root}/out"
dim = {dim}
checkpoint_minutes = 0

[query]
pooling = "mean"
max_tokens = 64
scratch = {{ layers = 1, hidden = 32, heads = 2, intermediate = 32, dropout = 0.0 }}
projection = true

[document.collection]
name = "articles"
path = "{root}/qdrant"

[vocabulary]
data = "collection"
size = 200

[export]
fp32_onnx = false
"""


def student(root: Path, *overrides: str, dim: int = DIM, stage: str = STAGE) -> Run:
    """Write a configuration of a student below a folder, and load it."""
    (root / "run.toml").write_text(CONFIG.format(root=root, dim=dim) + stage, encoding="utf-8")
    return load_run(root / "run.toml", overrides)


def write_texts(root: Path, texts: list[str], vectors: np.ndarray, vector_name: str = "") -> None:
    client = QdrantClient(path=str(root / "qdrant"))
    write_langchain(client, texts, vectors, vector_name=vector_name)
    client.close()


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an embedded database, and the run of a student that has learned its collection. Read only."""
    root = tmp_path_factory.mktemp("student")
    write_texts(root, TEXTS, WordModel().encode(TEXTS))
    run = student(root)
    run_stages(run)
    export(run, "care-train run run.toml")
    return root


@pytest.fixture
def client(taught: Path) -> Iterator[QdrantClient]:
    client = QdrantClient(path=str(taught / "qdrant"))
    yield client
    client.close()


def test_it_finds_documents_for_their_words(taught: Path, client: QdrantClient) -> None:
    folder = taught / "out" / "articles-queries"
    assert verify_checkpoint(folder).saved_sides == ("query",)
    found = Retriever(client, "articles", CareModel.load(folder)).search([text.split("。")[1] for text in TEXTS[:50]])
    hits = [text in {hit.text for hit in row} for text, row in zip(TEXTS, found, strict=False)]
    assert np.mean(hits) > 0.5  # by chance 0.02
    embedding = CareEmbedding(model=str(folder))
    asked = np.asarray(embedding.get_query_embedding("心痛"), np.float32)
    np.testing.assert_allclose(asked, CareModel.load(folder).encode_query(["心痛"])[0], atol=1e-5)
    with pytest.raises(ModelError, match=r"it was learned from vector '' of collection 'articles'"):
        embedding.get_text_embedding("心痛")


def test_the_report_and_the_contract(taught: Path, client: QdrantClient) -> None:
    folder = taught / "out" / "articles-queries"
    report = json.loads((folder / "learn" / "report.json").read_text("utf-8"))
    assert report["registered"] and report["layers"] == 1 and report["held_out"]["queries"] == 50
    assert report["steps"] == 16 * 8 and report["cpu_seconds"] > 0  # 450 texts, 64 a step
    assert report["held_out"]["recall_at_10"] > 0.5 and report["held_out"]["percentile"] > 0.9
    assert "transformer of 1 layer" in (folder / "learn" / "report.md").read_text("utf-8")
    contract = Collection(client, "articles").schema.learned[""]
    assert contract.fingerprint == CareModel.load(folder).fingerprint == report["fingerprint"]
    record = json.loads((taught / "out" / "align" / "stage.json").read_text("utf-8"))
    assert record["evaluation"] == report["held_out"]


def test_an_interrupted_run_goes_on_without_the_collection(taught: Path, tmp_path: Path) -> None:
    write_texts(tmp_path, TEXTS, WordModel().encode(TEXTS))
    with pytest.raises(Interrupted):
        run_stages(student(tmp_path), deadline=time.monotonic())
    (tmp_path / "qdrant").rename(tmp_path / "elsewhere")
    moved = student(tmp_path, f"document.collection.path={tmp_path / 'elsewhere'}")
    run_stages(moved)
    halves, whole = (load_file(root / "out/align/query/model.safetensors") for root in (tmp_path, taught))
    assert all(torch.equal(halves[name], whole[name]) for name in whole)
    with pytest.raises(InputError, match=r"other settings \(document.collection.sample\)"):
        run_stages(student(tmp_path, "document.collection.sample=300"))


def test_a_poor_student_is_registered_by_force_alone(tmp_path: Path) -> None:
    write_texts(tmp_path, TEXTS, WordModel().encode(TEXTS), vector_name="openai")
    poor = [f"document.collection.path={tmp_path / 'qdrant'}", "stage.align.max_steps=1"]
    run_stages(student(tmp_path, *poor))
    with pytest.raises(InputError, match="was written but not registered"):
        export(student(tmp_path, *poor), "")
    assert learned_of(tmp_path) == {}
    export(student(tmp_path, *poor, "export.force=true"), "")
    assert learned_of(tmp_path).keys() == {"openai"}


def learned_of(root: Path) -> dict[str, object]:
    """Return the learned contracts of the collection, by vector."""
    client = QdrantClient(path=str(root / "qdrant"))
    found = Collection(client, "articles").schema.learned
    client.close()
    return dict(found)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("document.collection.name=papers", r"no collection 'papers' \(existing collections: articles\)"),
        ("document.collection.text_field=body", "'body'"),
        ("dim=64", r"has 48 dimensions, and the run has dim = 64; set dim = 48"),
        ("document.collection.path=nowhere", "nowhere: there is no such folder"),
    ],
)
def test_what_is_refused_before_training(tmp_path: Path, override: str, message: str) -> None:
    write_texts(tmp_path, TEXTS, WordModel().encode(TEXTS))
    with pytest.raises(InputError, match=message):
        run_stages(student(tmp_path, override))


def test_a_width_that_nothing_makes_equal(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"query.scratch.hidden: 32 is smaller than dim 48"):
        student(tmp_path, "query.projection=false")


def test_what_a_run_on_a_collection_cannot_have(tmp_path: Path) -> None:
    with pytest.raises(InputError) as found:
        student(
            tmp_path,
            "evaluation.retrieval=dev",
            "geometry=cut",
            "document.collection.url=http://localhost:6333",
            'document.base="some"',
            'data.collection.files=["a.jsonl"]',
            "stage.align.pairs=true",
            stage=STAGE + '[[stage]]\nkind = "joint"\ndata = "collection"\n',
        )
    expected = (
        "document: give exactly one of base, scratch and collection",
        "document.collection: give url or path, not both",
        "data.collection: is the name of the collection's texts",
        "evaluation: not with a [document.collection]",
        "geometry: not with a [document.collection]",
        "stage.align: with a [document.collection], expected data = 'collection', no pairs",
        "stage.joint: needs a document encoder",
    )
    assert all(message in str(found.value) for message in expected)
    with pytest.raises(InputError, match="read and checked when the run begins"):
        describe(student(tmp_path))
