"""The forecast of `care train rehearse --layers 2` for care-0.3b-8b, against the same run with more layers, measured.

The bases have the real widths and vocabularies, random weights, and as many document layers as fit into the memory. All
is computed in float32: without AVX-512, torch multiplies bfloat16 by a loop.
"""

import gzip
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from care_trainer.config import Vocabulary
from care_trainer.models.scratch import CLS, EOS, SEP, fast_tokenizer, train_tokenizer
from transformers import GteConfig, Qwen3Config

from .measured import output_option, save_measured

WORDS = "头痛发热咳嗽胃酸血压糖尿感冒过敏皮疹失眠心悸腹泻眩晕水肿贫血哮喘痛风骨折肺炎肝炎肾炎湿疹鼻炎"
ROWS = 48
STAGES = ("document", "align", "joint")
"""Stages of `--preset without-query-init`: the others hold no document encoder."""


def write_bases(folder: Path, layers: int) -> None:
    """Write configurations and tokenizers: of gte-multilingual-mlm-base, and of the first layers of Qwen3-8B."""
    tokenizer = train_tokenizer(Vocabulary(data="", size=400), [WORDS])
    query = GteConfig(
        vocab_size=250_048, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, dtype="float16"
    )
    document = Qwen3Config(
        vocab_size=151_936,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        dtype="bfloat16",
    )
    for side, config, template in (("query", query, f"{CLS} $A {SEP}"), ("document", document, f"$A {EOS}")):
        config.save_pretrained(folder / side)
        fast_tokenizer(tokenizer, template, 512).save_pretrained(folder / side)


def write_data(folder: Path, characters: int) -> None:
    """Write the files that the configuration reads, of made-up texts."""
    draw = random.Random(0)

    def text(count: int) -> str:
        return "".join(draw.choices(WORDS, k=count))

    pairs = [
        {"query": text(24), "pos": [text(characters)], "neg": [text(characters) for _ in range(7)]} for _ in range(ROWS)
    ]
    scored = [{"sentence1": text(24), "sentence2": text(24), "score": at % 2} for at in range(ROWS)]
    files = {"unsupervised": pairs, "fine_tuning": pairs, "sts": scored}
    files |= {f"alignment_{side}": [{"text": text(24)} for _ in range(ROWS)] for side in ("queries", "documents")}
    for name, rows in files.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))


def rehearse(folder: Path, name: str, rows: int, *options: str) -> dict[str, Any]:
    """Run the command in a process of its own, so that its peak is not that of an earlier one."""
    settings = [f"{side}.base={folder / side}" for side in ("query", "document")]
    settings += [f"document.eos={EOS}", "document.dtype=float32", f"data_root={folder}", f"output={folder / name}"]
    settings += ["export.probe_texts=8", *(f"stage.{kind}.bf16=false" for kind in STAGES)]
    settings += [f"stage.{kind}.hard_negatives=1" for kind in ("document", "joint")]
    command = [sys.executable, "-m", "care_trainer.cli", "rehearse", "care-0.3b-8b", "--rows", str(rows), *options]
    command += ["--preset", "without-query-init"]
    command += [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@click.command()
@click.option("--layers", type=int, default=4, show_default=True, help="Layers of the document base that is measured.")
@click.option("--rows", type=int, default=2, show_default=True, help="Rows of a step.")
@click.option("--characters", type=int, default=24, show_default=True, help="Length of a document.")
@output_option
def main(layers: int, rows: int, characters: int, output: Path) -> None:
    """Forecast from two layers of each side, measure with all, and compare the peaks of each stage.

    \\b
    Example:
      python -m benchmarks.perf.rehearsal_width --output benchmarks/results/rehearsal-width.json
    """
    with tempfile.TemporaryDirectory(prefix="care-width-") as scratch:
        folder = Path(scratch)
        write_bases(folder, layers)
        write_data(folder, characters)
        forecast = rehearse(folder, "forecast", rows, "--layers", "2")
        measured = rehearse(folder, "measured", rows)
    peaks = {
        name: {
            "two_layers_gib": part["measured"]["peak_gib"],
            "forecast_gib": part["forecast"]["peak_gib"],
            "measured_gib": measured["parts"][name]["measured"]["peak_gib"],
            "ratio": round(part["forecast"]["peak_gib"] / measured["parts"][name]["measured"]["peak_gib"], 3),
        }
        for name, part in forecast["parts"].items()
    }
    shape = {"document_layers": layers, "query_layers": 12, "rows": rows, "characters": characters}
    save_measured(output, {"shape": shape, "peaks": peaks, "forecast": forecast, "measured": measured})


if __name__ == "__main__":
    main()
