"""``care train run`` and ``rehearse``, which take a configuration, and ``configs`` and ``presets``, which list them."""

import logging
import math
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from care_qdrant.console.groups import Command
from care_qdrant.console.options import FiniteRange, json_option
from care_qdrant.console.text import echo
from care_qdrant.destinations import require_writable
from care_qdrant.errors import InputError, counted, needs_extra

if TYPE_CHECKING:
    from care_trainer.config import Run
    from care_trainer.training.context import Report


set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a setting, such as stage.joint.epochs=2; repeatable.",
)


def load(config: str, overrides: Sequence[str], preset: str | None = None) -> "Run":
    """Read a configuration, a file or the name of a shipped one, with its changes."""
    from care_trainer.config import find_config, load_run
    from care_trainer.config.presets import apply_preset

    loaded = load_run(find_config(config), overrides)
    return loaded if preset is None else apply_preset(loaded, preset)


@click.command(cls=Command)
@click.argument("config")
@click.option(
    "--stage", help="Name of a single stage to run; the stages before it must be finished.  [default: all stages]"
)
@set_option
@click.option("--preset", help="Name of a comparison (see: care train presets).  [default: none]")
@click.option(
    "--minutes",
    type=FiniteRange(min=0),
    help="Time in minutes after which to save and stop.  [default: no limit]",
)
def run(
    config: str,
    stage: str | None,
    overrides: tuple[str, ...],
    preset: str | None,
    minutes: float | None,
) -> None:
    """Run the stages of CONFIG, a file or the name of a shipped configuration, and export the model.

    The same command resumes an interrupted run and keeps finished stages. Losses are in metrics.jsonl of each stage's
    folder, and their curves in curves.png.

    \b
    Example:
      care train run nano --set data_root=data
      care train run my.toml --stage joint --set stage.joint.learning_rate=5e-5
      care train run my.toml --preset without-align --set seed=1
    """
    started = time.monotonic()
    loaded = load(config, overrides, preset)
    with needs_extra("train", "training"):
        from care_trainer.needs import require_needs

        require_needs(loaded, config)
        from care_trainer.data.report import leaks
        from care_trainer.distributed import processes
        from care_trainer.export.checkpoint import export
        from care_trainer.export.curves import draw_curves
        from care_trainer.recipe import run_stages
        from care_trainer.training.callbacks import METRICS_FILE
    quiet()
    if loaded.evaluation is not None and processes().is_main_process and (leaked := leaks(loaded)):
        logging.getLogger("care_trainer").warning(
            "%s in the evaluation set, such as %r: its scores will be too good; leave them out "
            "(for the full list: care train data check %s)",
            counted(len(leaked), "training text", "are"),
            leaked[0],
            config,
        )
    deadline = None if minutes is None else started + 60 * minutes
    with progress_bars(processes().is_main_process) as report:
        run_stages(loaded, only=stage, report=report, deadline=deadline)
    if stage is None:
        command = ["care-train", "run", config, *(["--preset", preset] if preset else [])]
        if processes().is_main_process:
            curves = draw_curves(loaded)
            folder = Path(loaded.output) / export(loaded, shlex.join(command)).name
            echo(f"losses: {Path(loaded.output) / '*' / METRICS_FILE}; curves: {curves}", err=True)
            echo(str(folder))


@click.command(cls=Command)
@click.argument("config")
@click.option(
    "--layers",
    type=click.IntRange(min=2),
    help="Number of layers of each encoder to run, so that a CPU suffices.  [default: all]",
)
@click.option(
    "--rows", type=click.IntRange(min=2), help="Number of rows per step and process.  [default: as in CONFIG]"
)
@set_option
@click.option("--preset", help="Name of a comparison (see: care train presets).  [default: none]")
@json_option
def rehearse(
    config: str,
    layers: int | None,
    rows: int | None,
    overrides: tuple[str, ...],
    preset: str | None,
    as_json: bool,
) -> None:
    """Run three steps of each stage of CONFIG, then forecast time, memory and disk of the full run.

    The steps run on this machine, at the widths of the models, with checkpoint, resume, export and import. With
    --layers the forecast adds the layers that did not run. A base model without weight files gets random weights.

    \b
    Example:
      care train rehearse care-0.3b-8b --set data_root=data --layers 2 --rows 4
    """
    import dataclasses
    import shutil

    from care_qdrant.console.reports import show_report

    loaded = load(config, overrides, preset)
    with needs_extra("train", "training"):
        from care_trainer.needs import require_needs

        require_needs(loaded, config, weights=False)
        from care_trainer.distributed import processes
        from care_trainer.rehearse import rehearse as run_in_small
    quiet()
    folder = Path(f"{loaded.output}-rehearsal")
    if processes().is_main_process and folder.exists():
        raise InputError(
            f"{folder}: already exists, and a rehearsal would remove it; move it, or delete what a killed one left"
        )
    require_writable(folder)
    try:
        figures = run_in_small(dataclasses.replace(loaded, output=str(folder)), layers=layers, rows=rows)
    finally:
        if processes().is_main_process:
            shutil.rmtree(folder, ignore_errors=True)
    if processes().is_main_process:
        show_report(figures, as_json=as_json)


@click.group(invoke_without_command=True)
@click.pass_context
def configs(context: click.Context) -> None:
    """List the shipped configurations.

    \b
    Example:
      care train configs
    """
    if context.invoked_subcommand is None:
        from care_trainer.config import shipped_configs

        for path in shipped_configs():
            first = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
            echo(f"{path.stem:<24}{first}")


@configs.command()
@click.argument("name")
def show(name: str) -> None:
    """Print the commented TOML of the shipped configuration NAME; redirected into a file, it is a copy to edit.

    \b
    Example:
      care train configs show nano > my.toml
    """
    from care_trainer.config import find_config

    click.echo(find_config(name).read_text(encoding="utf-8"), nl=False)  # noqa: TID251  # our own file, whole


@click.command(cls=Command)
def presets() -> None:
    """List the paper's comparisons, with the table of each.

    \b
    Example:
      care train presets
    """
    from care_trainer.config.presets import PRESETS

    for name, preset in PRESETS.items():
        echo(f"{name:<24}{preset.table:<9}{preset.description}")


@contextmanager
def progress_bars(visible: bool) -> Iterator["Report"]:
    """Return, as a context, a report that shows the progress of each stage on stderr.

    It shows the time to go, the last loss, the tokens a second of all processes since the bar began, and the peak
    memory of this one.
    """
    from care_qdrant.progress import painted_bar
    from care_trainer.training.loop import peak_memory_bytes

    shown, paint = "", None
    started, before, tokens = time.monotonic(), 0, 0
    with ExitStack() as bar:

        def report(what: str, step: int, steps: int, loss: float, of_step: int) -> None:
            nonlocal shown, paint, started, before, tokens
            if not visible:
                return
            if paint is None or what != shown:
                # The first step took time before the clock started.
                started, before, tokens = time.monotonic(), step, 0
                bar.close()
                shown, paint = what, bar.enter_context(painted_bar(what, "steps"))
            else:
                tokens += of_step
            seconds = time.monotonic() - started
            left = seconds * (steps - step) / (step - before) if step > before else None
            notes = [] if math.isnan(loss) else [f"loss {loss:.4f}"]
            notes += [f"{tokens / seconds:,.0f} tokens/s"] if tokens and seconds else []
            paint(step, steps, left, [*notes, f"{peak_memory_bytes() / 2**30:.1f} GiB"])

        yield report


def quiet() -> None:
    """Silence the progress bars of transformers, one for each file that it loads; our own log is set by the options."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
