"""``python -m care_benchmarks.training``: what training costs."""

import json
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path

import click


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--epochs", default=3, show_default=True, help="Of Stage I.")
@click.option("--repeats", default=3, show_default=True, help="Pairs of measurements; the median ratio counts.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file.")
def command(corpus: Path, epochs: int, repeats: int, output: Path) -> None:
    """Measure Stage I with stored and with recomputed teacher vectors, and our loop against a plain script.

    \b
    Example:
      python -m care_benchmarks.training examples/sample/corpus.jsonl --output benchmarks/results/training.json
    """
    import torch
    from care_trainer.data import read_rows
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


if __name__ == "__main__":
    command()
