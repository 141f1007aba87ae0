"""``care-train data``: inspect and prepare training data."""

import json
from pathlib import Path

import click

from care_qdrant.console.groups import Program
from care_qdrant.errors import InputError
from care_trainer.cli.run import set_option


@click.group(cls=Program)
def data() -> None:
    """Inspect and prepare training data.

    \b
    Example:
      care-train data check nano --set data_root=data
    """


@data.command()
@click.argument("config")
@set_option
def check(config: str, overrides: tuple[str, ...]) -> None:
    """Print rows, sources, weights and lengths of each stage of CONFIG, as JSON.

    It ends with an error where the training data hold a text of the evaluation set.

    \b
    Example:
      care-train data check nano --set data_root=data
    """
    from care_trainer.config import find_config, load_run
    from care_trainer.data.report import describe, leaks

    loaded = load_run(find_config(config), overrides)
    click.echo(json.dumps(describe(loaded), ensure_ascii=False, indent=2))
    if loaded.evaluation is not None and (found := leaks(loaded)):
        raise InputError(
            f"{len(found)} training texts are in the evaluation set, among them:\n  " + "\n  ".join(found[:10])
        )


@data.command(name="self-pairs")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="JSONL file to write.")
def self_pairs(files: tuple[Path, ...], output: Path) -> None:
    """Write every text of JSONL FILES once, paired with itself: alignment data for Stage I.

    \b
    Example:
      care-train data self-pairs pairs.jsonl queries.jsonl --output alignment.jsonl
    """
    from care_trainer.config import Data
    from care_trainer.data.read import iter_texts

    texts = iter_texts(Data(files=tuple(str(file.resolve()) for file in files)), Path("/"))
    count = 0
    with output.open("w", encoding="utf-8") as stream:
        for text in texts:
            count += 1
            row = {"query": text.text, "positive": text.text, "source": text.source, **text.other}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    click.echo(f"{count} self-pairs → {output}")
