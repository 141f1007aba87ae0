"""``care train data``, ``mine`` and ``terms``: inspect and prepare training data, and learn BM25 weights from it."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from care_qdrant.console.groups import Command, Program
from care_qdrant.console.options import Target, json_option, model_options, target_options
from care_qdrant.console.outputs import require_free
from care_qdrant.console.reports import show_report
from care_qdrant.console.text import echo
from care_qdrant.destinations import require_writable
from care_qdrant.errors import InputError, counted
from care_trainer.cli.run import load, set_option

if TYPE_CHECKING:
    from care_qdrant import CareModel


@click.group(cls=Program)
def data() -> None:
    """Inspect and prepare training data.

    \b
    Example:
      care train data check nano --set data_root=data
    """


@data.command()
@click.argument("config")
@set_option
@json_option
def check(config: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print rows, sources, weights and lengths of each stage of CONFIG.

    The command ends with an error if the training data contain a text of the evaluation set.

    \b
    Example:
      care train data check nano --set data_root=data
    """
    from care_trainer.data.report import describe, leaks

    loaded = load(config, overrides)
    show_report(describe(loaded), as_json=as_json)
    if loaded.evaluation is not None and (leaked := leaks(loaded)):
        raise InputError(
            f"{counted(len(leaked), 'training text', 'are')} in the evaluation set, among them:\n  "
            + "\n  ".join(leaked[:10])
        )


@click.command(cls=Command)
@click.argument("pairs", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--collection", required=True, help="Collection to search for negatives; see: care ingest.")
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSONL file to write; it must not exist yet.",
)
@click.option(
    "--mode",
    type=click.Choice(["dense", "sparse"]),
    default="dense",
    show_default=True,
    help="Kind of search: dense by the model's vectors, sparse by BM25.",
)
@click.option(
    "--negatives",
    default=5,
    show_default=True,
    type=click.IntRange(min=1),
    help="Highest number of negatives per query.",
)
@click.option(
    "--ranks", nargs=2, default=(10, 60), show_default=True, type=int, help="First and last rank of a negative, from 1."
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
    target: Target,
    load_model: Callable[[], "CareModel"],
) -> None:
    """Add hard negatives from a collection to PAIRS, a JSONL file.

    With --mode dense, a negative scores at most 0.95 times as much as the positive.

    \b
    Example:
      care train mine pairs.jsonl --collection corpus --output mined.jsonl \\
        --ranks 10 60
    """
    from care_qdrant import Retriever
    from care_qdrant.progress import points_bar
    from care_trainer.config import Data
    from care_trainer.data.mining import MiningRule, mine_pairs, similarity
    from care_trainer.data.read import iter_pairs

    require_free(output)
    rule = MiningRule(negatives, ranks[0], ranks[1], MiningRule.relative_margin if mode == "dense" else None)
    read = list(iter_pairs(Data(files=(pairs.name,)), pairs.parent))
    model = load_model() if mode == "dense" else None
    with_negatives = 0
    with target.open() as client, ExitStack() as opened:
        retriever = Retriever(client, collection, model, mode="dense" if model else "sparse")
        retriever.resolved  # noqa: B018  # a collection that cannot be searched is refused before the file is made
        output.parent.mkdir(parents=True, exist_ok=True)
        stream = opened.enter_context(output.open("w", encoding="utf-8"))
        show = opened.enter_context(points_bar(pairs.name, "mined"))
        mined = mine_pairs(read, retriever.search, rule, similarity(model) if model else None)
        for number, pair in enumerate(mined, 1):
            show(number, len(read))
            with_negatives += bool(pair.negatives)
            stream.write(json.dumps(pair.row(), ensure_ascii=False) + "\n")
    echo(f"{counted(with_negatives, 'pair', 'have', of=len(read))} negatives → {output}")


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("pairs")
@set_option
def terms(folder: Path, pairs: str, overrides: tuple[str, ...]) -> None:
    """Learn from PAIRS the weights of query terms in hybrid searches, and write them into the CARE folder FOLDER.

    PAIRS is a JSONL file with 'query' and 'positive', or a configuration with such data. Words that most questions
    share then count less than words that are specific to one. Stored vectors and the fingerprint do not change.
    A tenth of the pairs, at most 2,000, is held out; if BM25 does not improve on them, nothing is written.

    \b
    Example:
      care train terms ./care-0.3b-4b pairs.jsonl
    """
    from tempfile import TemporaryDirectory

    from care_trainer.config import Data
    from care_trainer.needs import probe_data
    from care_trainer.terms import give_terms

    require_writable(folder)
    file, seed = Path(pairs), 0
    if ".jsonl" in file.name and not overrides:
        data, root = Data(files=(file.name,)), file.parent
    else:
        run = load(pairs, overrides)
        data, root, seed = probe_data(run), Path(run.data_root), run.seed
    with TemporaryDirectory(prefix="care-terms-") as cache:
        card, gate = give_terms(folder, data, root, Path(cache), seed=seed)
    echo(str(gate))
    echo(f"nothing written: {folder} gains nothing" if card is None else f"{folder}: hybrid searches use them")
