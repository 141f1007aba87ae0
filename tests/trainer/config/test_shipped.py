"""The shipped configurations: the paper's values in them, and their chains on stand-ins of the same architecture."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from care_trainer.cli import care_train
from care_trainer.config import Align, Contrastive, Joint, Run, Stage, find_config, load_run
from care_trainer.data.collators import PairCollator
from care_trainer.models import towers
from care_trainer.training.context import TrainingContext
from care_trainer.training.loop import training_arguments
from click.testing import CliRunner
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

from care_qdrant.model.adopt.published import DOCUMENT_TASKS, QUERY_TASKS
from care_qdrant.model.care_model import CareModel
from tests.tiny import query_tower
from tests.trainer.bases import gte_mlm_base, qwen3_base, write_gzipped, write_paper_data
from tests.trainer.tiny_run import pairs, table_of, write_world

PAPER = ("care-0.3b-4b", "care-0.3b-8b")
HIDDEN = {"care-0.3b-4b": 2560, "care-0.3b-8b": 4096}
PROCESSES = 8
"""One number among those that keep the batches of the paper."""


def _stages(run: Run) -> dict[str, Stage]:
    return {stage.kind: stage for stage in run.stage}


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize(
    ("kind", "rate", "warmup", "batch", "epochs"),
    [
        ("retromae", 2e-4, 0.0, 384, 3),  # table 19
        ("unsupervised", 1e-4, 0.05, 19_200, 3),
        ("supervised", 1e-4, 0.05, 640, 1),  # table 19 says 2; one for the pair's initialisation [G]
        ("document", 1e-4, 0.05, 640, 1),
        ("align", 1e-4, 0.05, 2_560, 1),  # table 20
        ("joint", 1e-4, 0.05, 640, 1),
    ],
)
def test_the_papers_tables_19_and_20(
    name: str, kind: str, rate: float, warmup: float, batch: int, epochs: float, tmp_path: Path
) -> None:
    run = load_run(find_config(name))
    stage = _stages(run)[kind]
    assert (stage.learning_rate, stage.warmup, stage.epochs) == (rate, warmup, epochs)
    assert stage.rows_of_process(PROCESSES) * stage.accumulate * PROCESSES == batch == stage.global_batch_size
    assert stage.rows_of_process(1) * stage.accumulate == batch, "as on any other number of processes"
    context = TrainingContext(run=run, stage=stage, folder=tmp_path)
    arguments = training_arguments(context, table_of({"query": ["哮喘"]}), PairCollator(preprocess_fn=None), rates={})
    assert arguments.optim.value.startswith("adamw") and arguments.lr_scheduler_type == "linear"
    assert arguments.learning_rate == rate and arguments.bf16


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_sections_4_d_and_g(name: str) -> None:
    run = load_run(find_config(name))
    stages = _stages(run)
    assert [stage.kind for stage in run.stage] == [
        "retromae", "unsupervised", "supervised", "document", "align", "joint"
    ]  # fmt: skip
    assert (run.dim, run.geometry) == (768, "cut")
    assert (run.query.pooling, run.document.pooling) == ("cls", "lasttoken")
    assert run.query.max_tokens == run.document.max_tokens == 512
    assert run.query.base == "Alibaba-NLP/gte-multilingual-mlm-base" and run.query.lora is None
    assert run.document.base == f"Qwen/Qwen3-{name[-2].upper()}B-Base"
    assert run.document.lora is not None and (run.document.lora.rank, run.document.lora.alpha) == (32, 64)
    align, document, unsupervised = stages["align"], stages["document"], stages["unsupervised"]
    assert isinstance(align, Align) and (align.contrastive_weight, align.mse_weight) == (1.0, 1.0)
    assert align.sides == ("query", "document") and not align.pairs
    assert isinstance(document, Contrastive) and {768, HIDDEN[name]} <= set(document.matryoshka)
    assert isinstance(unsupervised, Contrastive) and unsupervised.learn_temperature
    joint = stages["joint"]
    assert isinstance(joint, Joint) and (align.temperature, joint.temperature, joint.hard_negatives) == (0.1, 0.02, 7)
    assert all(stages[kind].batch_by_source for kind in ("supervised", "document", "align", "joint"))
    assert {stages[kind].weight_decay for kind in ("align", "joint")} == {0.05} and run.document.lora.dropout == 0.1
    assert (run.query.prompt, {name: task.query for name, task in run.tasks.items()}) == (
        QUERY_TASKS["retrieval"],
        QUERY_TASKS,
    )
    assert run.tasks["sts"].document == DOCUMENT_TASKS["sts"]
    assert stages["joint"].document_learning_rate is None, "one rate for both sides"
    assert all(stages[kind].gradient_checkpointing for kind in ("document", "joint"))
    assert run.dataloader_workers > 0, "texts are tokenised while the GPU works"


@pytest.mark.parametrize("name", PAPER)
def test_every_value_names_its_source(name: str) -> None:
    """A place in the paper, the published script, or that neither says; figures that only memory depends on say so."""
    lines = find_config(name).read_text(encoding="utf-8").splitlines()
    comment = ""
    for line in lines:
        value, _, behind = line.partition("# ")
        comment = behind or ("" if not line else comment)
        if "=" in value and value.split(" =")[0] not in ("name", "output", "data", "probe"):
            assert re.search(r"\[|\(script\)|open|not result", comment), line


def _run(name: str, *overrides: str) -> Path:
    arguments = ["run", name, *(part for override in overrides for part in ("--set", override))]
    result = CliRunner().invoke(care_train, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Path(result.stdout.strip().splitlines()[-1])


def _short(name: str, batch: int) -> list[str]:
    kinds = _stages(load_run(find_config(name)))
    return [f"stage.{kind}.{key}" for kind in kinds for key in ("max_steps=2", f"{_size(name)}={batch}")]


def _size(name: str) -> str:
    return "global_batch_size" if name in (*PAPER, "fine-tuned") else "batch_size"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* deprecated:FutureWarning")  # peft and the trainer
def test_the_papers_chain_on_stand_ins_of_its_base_models(tmp_path: Path) -> None:
    """The chain of 4B differs in one width; `test_published_chain.py` trains and kills it."""
    name = "care-0.3b-8b"
    write_paper_data(tmp_path / "data")
    folder = _run(
        name,
        f"query.base={gte_mlm_base(tmp_path / 'gte')}",
        f"document.base={qwen3_base(tmp_path / 'qwen3', HIDDEN[name])}",
        f"output={tmp_path / 'out'}",
        f"data_root={tmp_path / 'data'}",
        "export.probe_texts=8",
        *_short(name, 8),
    )
    adapter = json.loads((tmp_path / "out/joint/document/adapter_config.json").read_text(encoding="utf-8"))
    assert (adapter["r"], adapter["lora_alpha"]) == (32, 64)
    projections = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert {module.rsplit(".", 1)[-1] for module in adapter["target_modules"]} == set(projections)
    document = towers.load(tmp_path / "out/joint/document")
    ids = document.tokenizer("高血压" * 2000, truncation=True)["input_ids"]
    assert len(ids) == 512 and document.tokenizer.convert_ids_to_tokens(ids[-1]) == "<|endoftext|>"
    texts = [row["query"] for row in pairs()[:4]]
    # Stock sentence-transformers keeps the slice of the document side in float32, so its base has to be, too.
    stock = SentenceTransformer(str(folder), model_kwargs={"dtype": "float32"})
    care = CareModel.load(str(folder), precision="fp32")
    vectors = care.encode_query(texts)
    assert vectors.shape == (4, 768)
    np.testing.assert_allclose(stock.encode_query(texts), vectors, atol=1e-5)
    # The base is bfloat16 as the published one: computing in it rounds, and merging is gated by this cosine.
    rounded = document.encode_document(texts).astype(np.float32)
    rounded /= np.linalg.norm(rounded, axis=1, keepdims=True)
    documents = stock.encode_document(texts)
    lengths = np.linalg.norm(documents, axis=1, keepdims=True)
    assert lengths.max() < 1, "cut after they were normalised"
    np.testing.assert_allclose(care.encode_document(texts), documents, atol=2e-3)
    assert np.einsum("td,td->t", documents / lengths, rounded).min() > 0.999
    base = towers.load(tmp_path / "out/base/document").encode_document(texts)
    assert np.abs(base - document.encode_document(texts)).max() > 1e-5, "the adapter trained"


def test_a_baseline_of_table_3_is_fine_tuned_with_its_own_dense_layer(tmp_path: Path) -> None:
    """Conan-embedding-v1 and stella-base-zh-v3-1792d have vectors that are wider than their transformer."""
    inner = SentenceTransformer(str(query_tower(tmp_path / "inner")), device="cpu")
    dense = Dense(32, 56, activation_function=torch.nn.Tanh())
    base = SentenceTransformer(modules=[*list(inner.children())[:2], dense], device="cpu")
    base.save_pretrained(str(tmp_path / "base"), create_model_card=False)
    write_paper_data(tmp_path / "data")
    folder = _run(
        "fine-tuned",
        *(f"{side}.base={tmp_path / 'base'}" for side in ("query", "document")),
        "dim=56",
        f"output={tmp_path / 'out'}",
        f"data_root={tmp_path / 'data'}",
        "export.probe_texts=8",
        *_short("fine-tuned", 8),
    )
    texts = [row["query"] for row in pairs()[:4]]
    tuned = SentenceTransformer(str(folder / "document"), device="cpu")
    [own] = [module for module in tuned if isinstance(module, Dense)]
    assert isinstance(own.activation_function, torch.nn.Tanh)
    assert not torch.equal(own.linear.weight, dense.linear.weight.cpu()), "it trained"
    care = CareModel.load(str(folder), precision="fp32")
    np.testing.assert_allclose(care.encode_query(texts), tuned.encode(texts), atol=1e-5)
    np.testing.assert_allclose(care.encode_document(texts), tuned.encode(texts), atol=1e-5)


def test_what_the_guide_varies_are_settings() -> None:
    guide = (Path(__file__).parents[3] / "docs/how-to/train-recipe.md").read_text(encoding="utf-8")
    settings = re.findall(r"`--set\s(\S+)`", guide.partition("What the paper varies otherwise")[2].partition("\n\n")[0])
    assert len(settings) == 4
    for setting in settings:
        name = "small" if "scratch" in setting else "care-0.3b-4b"
        assert load_run(find_config(name), [setting]) != load_run(find_config(name))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["small", "nano"])
def test_a_chain_from_scratch_with_fewer_layers(name: str, tmp_path: Path) -> None:
    write_world(tmp_path)
    rows: list[dict[str, object]] = [*pairs()]
    write_gzipped(tmp_path / "data/train/pairs_open.jsonl.gz", rows)
    write_gzipped(
        tmp_path / "data/train/queries.jsonl.gz", [{"text": row["query"], "license": "CC0"} for row in pairs()]
    )
    (tmp_path / "data/dev").rename(tmp_path / "data/moved")
    (tmp_path / "data/dev").mkdir()
    (tmp_path / "data/moved").rename(tmp_path / "data/dev/retrieval")
    folder = _run(
        name,
        "query.scratch.layers=1",
        "document.scratch.layers=2",
        "vocabulary.size=600",
        f"output={tmp_path / 'out'}",
        f"data_root={tmp_path / 'data'}",
        "export.probe_texts=8",
        *_short(name, 16),
    )
    run = load_run(find_config(name))
    assert CareModel.load(str(folder)).encode_query(["哮喘"]).shape == (1, run.dim)
    assert (tmp_path / "out/curves.png").stat().st_size > 0
