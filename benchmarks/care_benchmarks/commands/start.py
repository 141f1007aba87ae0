"""``care-bench start``."""

from pathlib import Path

import click


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--model", default="built-in", show_default=True, help="As in care search.")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True, help="Fresh processes per command.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write.")
def command(corpus: Path, model: str, rounds: int, output: Path) -> None:
    """Measure what `care --help` and `care search` cost from a cold start, on the first documents of CORPUS.

    \b
    Example:
      care-bench start examples/sample/corpus.jsonl --output benchmarks/results/command-start.json
    """
    from dataclasses import asdict

    from care_benchmarks.command_start import as_json, measure_starts
    from care_benchmarks.machine import describe_machine

    starts = measure_starts(corpus, model, rounds)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(as_json(starts, asdict(describe_machine())) + "\n", encoding="utf-8")
    for start in starts:
        click.echo(
            f"{start.command:14} {start.cpu_seconds:.2f} CPU s, {'reads' if start.reads_torch else 'without'} torch"
        )
