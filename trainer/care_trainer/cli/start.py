"""``care train start``: from question–answer pairs to a scored model."""

from pathlib import Path

import click

from care_qdrant.console.groups import Command
from care_qdrant.console.options import json_option
from care_qdrant.console.reports import show_report
from care_qdrant.console.text import echo, table
from care_qdrant.errors import InputError, counted, needs_extra
from care_qdrant.model.hub import BUILT_IN


@click.command(cls=Command)
@click.argument("pairs", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), help="Output folder.  [default: name of PAIRS]"
)
@click.option(
    "--base",
    help="Model to start from: a CARE folder, a sentence-transformers model, 'built-in', or 'scratch' for random "
    "weights.  [default: 'built-in' if it reads the questions, else 'scratch']",
)
@json_option
def start(pairs: Path, output: Path | None, base: str | None, as_json: bool) -> None:
    """Train a model on PAIRS, JSON lines with 'query' and 'positive', and score it on held-out questions.

    A tenth of the pairs, at most 2,000, is held out; no text of these pairs is used for training. The command writes a
    commented configuration for this machine and runs its stages. A table then compares the model before and after
    training, BM25, and both together, and says which differences are clear. To resume an interrupted run, give the same
    command again.

    \b
    Example:
      care train start faq.jsonl --output faq
    """
    import dataclasses

    with needs_extra("train", "training"):
        import torch

        from care_trainer.cli.run import progress_bars, quiet
        from care_trainer.config import load_run
        from care_trainer.disk import write_json
        from care_trainer.distributed import processes
        from care_trainer.export.checkpoint import export
        from care_trainer.export.curves import draw_curves
        from care_trainer.recipe import run_stages
        from care_trainer.start import (
            INCLUDED_HAS_READ,
            RESULT,
            SCRATCH,
            WORTH_SAYING,
            advice,
            differences_of,
            forecasting,
            measure,
            prepare,
            rows_of,
        )
    quiet()
    if processes().num_processes > 1:
        raise InputError(
            "care train start runs in one process; give the configuration that it wrote to: care train run"
        )
    folder = output or Path(pairs.name.split(".")[0])
    prepared = prepare(pairs, folder, base=base)
    licenses = ", ".join(f"{name or 'no license'} {count:,}" for name, count in prepared.licenses.items())
    echo(
        f"{counted(prepared.pairs, 'pair')} to train on; {counted(prepared.held_out, 'question')} held out with their "
        f"answers, to search among {counted(prepared.documents, 'document')}: these and answers of the training\n"
        f"licenses: {licenses}\n"
        f"base: {prepared.base}; configuration: {prepared.config}",
        err=True,
    )
    run = load_run(prepared.config)
    model = folder / "run" / run.name
    # Not the folder of the model: a kill may have come between that and the weights of its BM25 terms.
    is_done = (folder / RESULT).is_file()
    if is_done:
        echo(f"{folder}: is trained already, and is measured again", err=True)
    elif (folder / "run").is_dir():
        echo(f"{folder}: resumes the interrupted training", err=True)

    def tell(stage: str, minutes: float) -> None:
        if minutes >= WORTH_SAYING and not torch.cuda.is_available():
            echo(
                f"\nstage {stage}: about {minutes:,.0f} more minutes of CPU; for less, Ctrl-C, lower 'epochs' in "
                f"{prepared.config}, and give the same command again",
                err=True,
            )

    with progress_bars(True) as report:
        records = run_stages(run, report=forecasting(report, tell))
    if not is_done:
        export(run, f"care train start {pairs.name}")
        draw_curves(run)
    before = None if prepared.base == SCRATCH else prepared.base
    result = measure(run, model, before)
    write_json(folder / RESULT, dataclasses.asdict(result))
    minutes = sum(record["cpu_seconds"] for record in records) / 60
    echo(f"the training took {minutes:.1f} CPU minutes, all sittings together", err=True)
    if as_json:
        show_report(result, as_json=True)
        return
    echo(table(["", "nDCG@10 [95 %]", "recall@10 [95 %]"], rows_of(result)))
    echo("\nnDCG@10, question by question [95 %]:")
    for line in differences_of(result):
        echo(f"  {line}")
    if before == BUILT_IN:
        echo(INCLUDED_HAS_READ)
    echo(f"\n{advice(result, prepared.base)}")
