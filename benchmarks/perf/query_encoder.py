"""CPU time of the query encoder by length and batch against LlamaIndex's stock class, and the effect of int8.

All encoders run in one process on one core in turn, so that load on the machine affects all equally; ratios are paired.
A query between two of another encoder finds its code and its weights out of the caches; queries in a row do not.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from care_qdrant.encoders.onnx import OnnxEncoder
from care_qdrant.errors import InputError
from care_qdrant.model.card import Card, read_card
from care_qdrant.model.care_model import CareModel
from care_qdrant.types import Vectors

from .measured import output_option, save_measured
from .random_pair import named_or_random_pair, sample_queries
from .stacks import open_stack

Encode = Callable[[Sequence[str]], Vectors]

STOCK = "HuggingFaceEmbedding"
LEARNED = "learned"
LENGTHS = (16, 36, 64)
"""Tokens of a query, special tokens included."""
BATCHES = (1, 8, 32)
IN_A_ROW = 16
"""Single queries that an encoder answers one after the other before it is the next one's turn."""
COMPANY = 32
"""Number of queries of mixed lengths that are encoded together, to see whether they change each other's vectors."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One encoder on queries of one length, in batches of one size."""

    encoder: str
    tokens: int
    batch: int
    in_a_row: int
    """Batches of an encoder's turn."""
    cpu_ms_per_query: float
    """Median over the rounds."""
    times_faster: float
    """Median over the rounds of the stock class's time divided by this one's."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Difference of an encoder's vectors from those of the stock class."""

    encoder: str
    file_mib: float
    least_cosine: float
    """Smallest cosine between its vectors and those of the stock class."""
    mean_cosine: float
    largest_difference: float
    """Largest difference of a coordinate from that of the stock class."""
    moved_by_company: float
    """Largest change of a coordinate between a query alone and the same query among others."""


def measure(model: Path, rounds: int, learned: Path | None = None) -> dict[str, Any]:
    """Measure the ONNX files of a CARE folder's query encoder against the stock class with the same weights."""
    card = read_card(model)
    if card.query.pooling == "static":
        raise InputError(f"{model}: its query encoder is static, which the stock class cannot load; name another model")
    if card.onnx is None:
        raise InputError(f"{model}: its query encoder has no ONNX file to time; export it: care model join")
    encoders = _open_encoders(model, card)
    own = [name for name in encoders if name != STOCK]
    if learned is not None:
        encoders[LEARNED] = CareModel.load(str(learned)).query_encoder.encode
    costs = [
        cost
        for tokens in LENGTHS
        for batch, in_a_row, turns in (*((batch, 1, rounds // batch) for batch in BATCHES), (1, IN_A_ROW, rounds // 4))
        for cost in _cell(encoders, tokens, batch, in_a_row, max(2, turns))
    ]
    return {
        "model": card.name,
        "int8_gate": dict(card.onnx.gate) if card.onnx else {},
        "fidelity": [asdict(_fidelity(name, encoders, model, card)) for name in own],
        "costs": [asdict(cost) for cost in costs],
    }


def _open_encoders(model: Path, card: Card) -> dict[str, Encode]:
    stock = open_stack("huggingface", model)
    stock.embed_batch_size = max(BATCHES)
    encoders: dict[str, Encode] = {
        STOCK: lambda texts: np.array(stock.get_text_embedding_batch(list(texts)), dtype=np.float32)
    }
    for name, file in _onnx_files(card).items():
        encoders[name] = OnnxEncoder(model / "query", file, card.query, card.dim).encode
    return encoders


def _onnx_files(card: Card) -> dict[str, str]:
    files = {"fp32": card.onnx.fp32, "int8": card.onnx.int8} if card.onnx else {}
    return {name: file for name, file in files.items() if file}


def _cell(encoders: Mapping[str, Encode], tokens: int, batch: int, in_a_row: int, turns: int) -> list[Cost]:
    queries, rng = sample_queries(tokens), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    for number in range(-1, turns):
        batches = [rng.sample(queries, batch) for _ in range(in_a_row)]
        for name in rng.sample(list(encoders), len(encoders)):
            began = time.process_time()
            for texts in batches:
                encoders[name](texts)
            if number >= 0:
                seconds[name].append((time.process_time() - began) / (batch * in_a_row))
    stock = np.array(seconds[STOCK])
    return [
        Cost(name, tokens, batch, in_a_row, float(np.median(own) * 1e3), float(np.median(stock / np.array(own))))
        for name, own in seconds.items()
    ]


def _fidelity(name: str, encoders: Mapping[str, Encode], model: Path, card: Card) -> Fidelity:
    texts = [text[: 4 + number] for number, text in enumerate(sample_queries(COMPANY + 8)[:COMPANY])]
    together, stock = encoders[name](texts), encoders[STOCK](texts)
    alone = np.concatenate([encoders[name]([text]) for text in texts])
    cosines = np.sum(together * stock, axis=1)
    return Fidelity(
        encoder=name,
        file_mib=(model / "query" / _onnx_files(card)[name]).stat().st_size / 2**20,
        least_cosine=float(cosines.min()),
        mean_cosine=float(cosines.mean()),
        largest_difference=float(np.abs(together - stock).max()),
        moved_by_company=float(np.abs(together - alone).max()),
    )


@click.command()
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A CARE folder.  [default: random weights]",
)
@click.option(
    "--learned",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="CARE folder that `care learn` made from the vectors of --model, to time beside it.  [default: none]",
)
@click.option("--layers", default=12, show_default=True, help="Layers of the random BERT.")
@click.option("--rounds", type=click.IntRange(min=2), default=40, show_default=True, help="Queries of each cell.")
@output_option
def main(model: Path | None, learned: Path | None, layers: int, rounds: int, output: Path) -> None:
    """Time the query encoder by length and batch, in float32 and int8, against LlamaIndex's stock class.

    \b
    Example:
      OMP_NUM_THREADS=1 python -m benchmarks.perf.query_encoder --output benchmarks/results/query_speed.json
    """
    with named_or_random_pair(model, layers) as folder:
        save_measured(output, {"layers": layers, "rounds": rounds, **measure(folder, rounds, learned)})


if __name__ == "__main__":
    main()
