"""``care-train run`` and ``care-train configs``."""

import logging
import math
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from care_qdrant.errors import InputError, needs_extra

if TYPE_CHECKING:
    from care_trainer.stages.context import Report


@click.command()
@click.argument("config")
@click.option("--stage", help="Run only this stage; those before it must be finished.")
@click.option("--resume", is_flag=True, help="Keep finished stages, continue an interrupted one where it stopped.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a value: stage.joint.epochs=2")
@click.option("--preset", help="One of the paper's comparisons; see: care-train presets")
@click.option("--push", metavar="REPOSITORY", help="Upload the pair to a private hub repository at the end.")
@click.option("--minutes", type=float, help="Save and stop after so many minutes; go on with --resume.")
def run(
    config: str,
    stage: str | None,
    resume: bool,
    overrides: tuple[str, ...],
    preset: str | None,
    push: str | None,
    minutes: float | None,
) -> None:
    """Run the stages of CONFIG, a file or the name of a shipped configuration, and export the pair.

    \b
    Example:
      care-train run nano --set data_root=data --resume
      care-train run my.toml --stage joint --set stage.joint.learning_rate=5e-5
      care-train run my.toml --preset without-align --set seed=1
      care-train run my.toml --push organisation/care-mine
    """
    from care_trainer.parse import load_run
    from care_trainer.presets import apply_preset

    started = time.monotonic()
    path = find_config(config)
    loaded = load_run(path, overrides)
    if preset is not None:
        loaded = apply_preset(loaded, preset)
    with needs_extra("train", "training"):
        from care_trainer.chain import run_stages
        from care_trainer.curves import draw_curves
        from care_trainer.distributed import processes
        from care_trainer.export import export
        from care_trainer.publish import push as upload
        from care_trainer.publish import require_token
    if push is not None:
        require_token()  # not after a night of training
    quiet()
    deadline = None if minutes is None else started + 60 * minutes
    with progress_bars(processes().is_main_process) as report:
        run_stages(loaded, only=stage, resume=resume, report=report, deadline=deadline)
    if stage is None:
        command = ["care-train", "run", config, *(["--preset", preset] if preset else [])]
        if processes().is_main_process:
            draw_curves(loaded)
            folder = Path(loaded.output) / export(loaded, shlex.join(command)).name
            click.echo(str(folder))
            if push is not None:
                click.echo(upload(folder, push))


@click.command()
def configs() -> None:
    """List the shipped configurations.

    \b
    Example:
      care-train configs
    """
    for path in _shipped():
        first = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        click.echo(f"{path.stem:<24}{first}")


@click.command()
def presets() -> None:
    """List the paper's comparisons, with the table of each.

    
    Example:
      care-train presets
    """
    from care_trainer.presets import PRESETS

    for name, preset in PRESETS.items():
        click.echo(f"{name:<24}{preset.table:<9}{preset.description}")


def _shipped() -> list[Path]:
    return sorted(Path(str(files("care_trainer") / "configs")).glob("*.toml"))


def find_config(config: str) -> Path:
    """Give the file of a configuration that is named by path or by its shipped name."""
    if Path(config).suffix == ".toml":
        return Path(config)
    for path in _shipped():
        if path.stem == config:
            return path
    raise InputError(f"{config}: neither a .toml file nor a shipped configuration (see: care-train configs)")


@contextmanager
def progress_bars(visible: bool) -> Iterator["Report"]:
    """Draw one progress bar a stage on stderr, with the last loss."""
    from tqdm import tqdm

    bars: dict[str, tqdm[NoReturn]] = {}

    def report(what: str, step: int, steps: int, loss: float) -> None:
        if what not in bars:
            for bar in bars.values():
                bar.close()
            bars[what] = tqdm(
                total=steps,
                initial=max(0, step - 1),
                desc=what,
                file=sys.stderr,
                dynamic_ncols=True,
                disable=not visible,
            )
        bars[what].update(step - bars[what].n)
        if not math.isnan(loss):
            bars[what].set_postfix_str(f"loss {loss:.4f}", refresh=False)

    try:
        yield report
    finally:
        for bar in bars.values():
            bar.close()


def quiet() -> None:
    """Leave stderr to the progress bar: transformers draws one for each file that it loads."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("care_trainer").setLevel(logging.INFO)
