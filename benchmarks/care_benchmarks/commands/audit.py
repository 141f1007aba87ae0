"""``care-bench audit``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from care_benchmarks.measures import Run


@click.command()
@click.argument("task_directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.argument("result", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON lines to annotate."
)
@click.option("--depth", type=click.IntRange(1), default=50, show_default=True, help="Ranks to look at.")
def command(task_directory: Path, result: Path, output: Path, depth: int) -> None:
    """Export the unjudged documents that a saved RESULT ranks high on the retrieval task of TASK_DIRECTORY.

    Labels of this field miss relevant documents (paper, section E and table 13). The share of unjudged documents is
    printed for each system; the file has one line per query and document, those that most systems found first.

    \b
    Example:
      care-bench audit examples/sample results/sample --output build/to-judge.jsonl
    """
    from care_benchmarks.audit import audit, candidates, write_candidates
    from care_benchmarks.results import load_result
    from care_benchmarks.tasks import directory_tasks, kind_of, qrels_of, texts_of
    from care_qdrant.cli.table import table
    from care_qdrant.errors import InputError

    saved = load_result(result)
    revisions = {task.revision: task.name for task in saved.tasks if task.kind == "retrieval"}
    task = next((task for task in directory_tasks(task_directory) if kind_of(task) == "retrieval"), None)
    if task is None or task.metadata.dataset["revision"] not in revisions:
        raise InputError(f"{result}: was not measured on the retrieval task that {task_directory} holds now")
    task.load_data()
    qrels, (queries, documents) = qrels_of(task), texts_of(task)
    runs = _read_runs(result, revisions[task.metadata.dataset["revision"]], [system.name for system in saved.systems])
    rows = []
    for system, run in runs.items():
        found = audit(qrels, run, depth)
        shares = f"{found.unjudged_share:.3f}", f"{found.unjudged_per_query:.1f}"
        rows.append([system, *shares, f"{found.above_first_positive_per_query:.1f}"])
    header = ["system", "unjudged share", "unjudged per query", "above the first positive"]
    click.echo(table(header, rows, width=1_000))
    count = write_candidates(candidates(qrels, runs, queries, documents, depth), output)
    click.echo(f"{output}: {count:,} candidates", err=True)


def _read_runs(result: Path, task: str, systems: list[str]) -> "dict[str, Run]":
    from care_benchmarks.search import file_name

    runs = {}
    for system in systems:
        path = result / "runs" / file_name(system) / f"{task}_predictions.json"
        if path.is_file():
            runs[system] = json.loads(path.read_text(encoding="utf-8"))["default"]["test"]
    return runs
