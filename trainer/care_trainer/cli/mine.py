"""``care-train mine``: hard negatives from a Qdrant collection."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from care_qdrant.console.options import Target, model_options, target_options

if TYPE_CHECKING:
    from care_qdrant.model.pair import CareModel


@click.command()
@click.argument("pairs", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--collection", required=True, help="Collection that is searched; see: care ingest")
@click.option("--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="JSONL file to write.")
@click.option(
    "--mode", type=click.Choice(["dense", "sparse"]), default="dense", show_default=True, help="Kind of the search."
)
@click.option(
    "--negatives", default=5, show_default=True, type=click.IntRange(min=1), help="Most negatives of one query."
)
@click.option(
    "--ranks", nargs=2, default=(10, 60), show_default=True, type=int, help="First and last rank of a negative, from 1."
)
@click.option(
    "--margin",
    default=0.05,
    show_default=True,
    type=click.FloatRange(min=0, max=1),
    help="Dense only: a negative scores at most (1 - margin) times the positive's score.",
)
@target_options
@model_options()
def mine(
    pairs: Path,
    collection: str,
    output: Path,
    mode: str,
    negatives: int,
    ranks: tuple[int, int],
    margin: float,
    target: Target,
    load_model: Callable[[], "CareModel"],
) -> None:
    """Add hard negatives from a collection to PAIRS, a JSONL file.

    \b
    Example:
      care-train mine pairs.jsonl --collection corpus --output mined.jsonl --ranks 10 60
    """
    from tqdm import tqdm

    from care_qdrant.search.retriever import Retriever
    from care_trainer.config import Data
    from care_trainer.data.mining import MiningRule, mine_pairs, similarity
    from care_trainer.data.read import iter_pairs

    rule = MiningRule(negatives, ranks[0], ranks[1], margin if mode == "dense" else None)
    read = list(iter_pairs(Data(files=(pairs.name,)), pairs.parent))
    model = load_model() if mode == "dense" else None
    found = 0
    with target.open() as client, output.open("w", encoding="utf-8") as stream:
        retriever = Retriever(client, collection, model, mode="dense" if model else "sparse")
        for pair in tqdm(
            mine_pairs(read, retriever.search, rule, similarity(model) if model else None), total=len(read)
        ):
            found += bool(pair.negatives)
            stream.write(json.dumps(pair.row(), ensure_ascii=False) + "\n")
    click.echo(f"{found} of {len(read)} pairs have negatives → {output}")
