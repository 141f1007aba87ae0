"""Peak memory of training steps at published widths, against the prediction of ``care-train init``.

Each stage runs some steps of the real trainer in a process of its own, on checkpoints with random weights: a query
encoder of gte-multilingual's width and vocabulary in float16, a document encoder of Qwen3-4B's in bfloat16, both in
several files and with few layers. The peak is that of the last step and the optimizer's before it: on a CPU what
Linux counts (VmHWM) above the process before it loaded a model, on a GPU PyTorch's own figure.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import torch
from care_trainer import pipeline
from care_trainer.config import Run, load_run
from care_trainer.stages.cost import load_shape, peak_bytes
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    GteConfig,
    GteForMaskedLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    set_seed,
)

from .measured import output_option, plain, save_measured, shown

STEPS = 3
WORDS = 1000
STAGES = {
    "retromae": "epochs = 1\nbatch_size = 4\nbf16 = true\n",
    "joint": (
        "epochs = 1\nbatch_size = 4\nhard_negatives = 1\nbf16 = true\n"
        "cached = true\nmini_batch_tokens = 512\ngradient_checkpointing = true\n"
    ),
}
"""Settings of the measured stages, as in care-0.3b-4b but for the size of a batch."""
CONFIG = """
name = "memory"
output = "{folder}/{stage}"
data_root = "{folder}"
dim = {width}
geometry = "cut"
checkpoint_minutes = 60

[query]
base = "{folder}/query-base"
pooling = "cls"
max_tokens = {tokens}

[document]
base = "{folder}/document-base"
pooling = "lasttoken"
max_tokens = {tokens}
lora = {{ rank = 32, alpha = 64, dropout = 0.1 }}

[data.rows]
files = ["rows.jsonl"]

[[stage]]
kind = "{stage}"
data = "rows"
max_steps = {steps}
{settings}
"""


@dataclass(frozen=True)
class Shape:
    """The size of the checkpoints and of the texts."""

    query_layers: int = 2
    query_width: int = 768
    query_vocabulary: int = 250_048
    document_layers: int = 2
    document_width: int = 2560
    document_vocabulary: int = 151_936
    tokens: int = 64


@dataclass(frozen=True)
class Peak:
    """The memory of one stage."""

    stage: str
    predicted_bytes: int
    measured_bytes: int

    @property
    def ratio(self) -> float:
        """Return the measured part of the prediction."""
        return self.measured_bytes / self.predicted_bytes


def write_world(shape: Shape, folder: Path) -> None:
    """Write both checkpoints and the rows that train, all of the longest texts but one in four."""
    set_seed(0)
    query = GteConfig(
        vocab_size=shape.query_vocabulary,
        hidden_size=shape.query_width,
        num_hidden_layers=shape.query_layers,
        num_attention_heads=shape.query_width // 64,
        intermediate_size=4 * shape.query_width,
    )
    GteForMaskedLM(query).to(torch.float16).save_pretrained(folder / "query-base", max_shard_size="200MB")
    document = Qwen3Config(
        vocab_size=shape.document_vocabulary,
        hidden_size=shape.document_width,
        num_hidden_layers=shape.document_layers,
        num_attention_heads=shape.document_width // 80,
        num_key_value_heads=shape.document_width // 320,
        head_dim=128,
        intermediate_size=int(3.8 * shape.document_width),
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(document).to(torch.bfloat16).save_pretrained(folder / "document-base", max_shard_size="200MB")
    for name in ("query-base", "document-base"):
        _tokenizer().save_pretrained(folder / name)
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as stream:
        for row in range(4 * STEPS):
            words = [f"w{(7 * row + at) % WORDS}" for at in range(shape.tokens)]
            text, other = " ".join(words if row % 4 else words[: len(words) // 2]), " ".join(reversed(words))
            stream.write(json.dumps({"query": text, "positive": f"w{row} {text}", "negatives": [other]}) + "\n")


def _tokenizer() -> PreTrainedTokenizerFast:
    specials = ["<s>", "</s>", "<pad>", "<unk>", "<mask>"]
    known = {word: at for at, word in enumerate([*specials, *(f"w{at}" for at in range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    marks = {
        "cls_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)  # type: ignore[no-untyped-call]


def load_config(stage: str, shape: Shape, folder: Path) -> Run:
    """Return the run of one stage."""
    path = folder / f"{stage}.toml"
    settings = {"folder": folder, "stage": stage, "settings": STAGES[stage], "steps": STEPS}
    path.write_text(CONFIG.format(width=shape.query_width, tokens=shape.tokens, **settings), encoding="utf-8")
    return load_run(path)


def predicted_bytes(run: Run) -> int:
    """Return what ``care-train init`` says of the only stage of a run."""
    return peak_bytes(run, run.stage[0], {"query": load_shape(run, "query"), "document": load_shape(run, "document")})


def measure(stage: str, shape: Shape, folder: Path) -> Peak:
    """Train a stage in processes of its own, the base models first, and return its peak."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # a freed tensor goes back to the system
    command = [sys.executable, "-m", "benchmarks.perf.training_memory", "child", stage, json.dumps(asdict(shape))]
    for part in ("base", "stage"):
        done = subprocess.run([*command, str(folder), part], env=environment, check=True, stdout=subprocess.PIPE)
    return Peak(stage, **json.loads(done.stdout.splitlines()[-1]))


def train(run: Run) -> dict[str, int]:
    """Train the only stage of a run, whose base models are there, and return the prediction and the peak."""
    (stage,) = run.stage
    predicted = predicted_bytes(run)
    gc.collect()
    before, peak = _memory("VmRSS"), 0

    def report(what: str, step: int, *_: float) -> None:
        nonlocal peak
        if what == stage.kind and step == STEPS - 1:
            _touch_weights()
            _reset_peak()
        elif what == stage.kind and step == STEPS:
            peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _memory("VmHWM") - before

    pipeline.run_stages(run, only=stage.kind, resume=True, report=report)
    return {"predicted_bytes": predicted, "measured_bytes": peak}


def _touch_weights() -> None:
    """Read a value of each page of weights that are mapped from a file: unread words of a vocabulary are not held."""
    for weight in [found for found in gc.get_objects() if isinstance(found, torch.nn.Parameter)]:
        weight.detach().flatten()[:: 4096 // weight.element_size()].sum()


def _reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is now what is held


def _memory(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith(field))


@click.group()
def main() -> None:
    """Measure the memory of training steps."""


@main.command()
@click.argument("stage")
@click.argument("shape")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("part", type=click.Choice(["base", "stage"]))
def child(stage: str, shape: str, folder: Path, part: str) -> None:
    """Run a part of a stage in this process, and print its peak."""
    run = load_config(stage, Shape(**json.loads(shape)), folder)
    if part == "base":
        pipeline.run_stages(replace(run, stage=()), resume=True)
    else:
        click.echo(json.dumps(train(run)))


@main.command("all")
@click.option("--query-layers", default=2, show_default=True, help="Layers of the query encoder.")
@click.option("--document-layers", default=2, show_default=True, help="Layers of the document encoder.")
@output_option
def measure_all(query_layers: int, document_layers: int, output: Path) -> None:
    """Measure a step of RetroMAE and one of Stage II at published widths and vocabularies.

    \b
    Example:
      python -m benchmarks.perf.training_memory all --output benchmarks/results/training-memory.json
    """
    shape = Shape(query_layers=query_layers, document_layers=document_layers)
    with tempfile.TemporaryDirectory() as name:
        write_world(shape, Path(name))
        peaks = [shown(measure(stage, shape, Path(name))) for stage in STAGES]
    ratios = {f"{peak.stage}_measured_over_predicted": round(peak.ratio, 3) for peak in peaks}
    save_measured(output, {"shape": asdict(shape), "stages": STAGES, "peaks": plain(peaks), **ratios})


if __name__ == "__main__":
    main()
