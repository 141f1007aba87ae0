"""``care-train configs`` and ``care-train presets``: the shipped TOML files, listed or printed."""

from pathlib import Path

import click

from care_qdrant.errors import InputError, needs_extra
from care_trainer.cli.run import set_option


@click.group(invoke_without_command=True)
@click.pass_context
def configs(context: click.Context) -> None:
    """List the shipped configurations.

    \b
    Example:
      care-train configs
    """
    if context.invoked_subcommand is None:
        from care_trainer.config import shipped_configs

        for path in shipped_configs():
            first = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
            click.echo(f"{path.stem:<24}{first}")


@configs.command()
@click.argument("name")
def show(name: str) -> None:
    """Print the commented TOML of the shipped configuration or preset NAME.

    \b
    Example:
      care-train configs show nano
    """
    from care_trainer.config import shipped_configs
    from care_trainer.config.presets import PRESETS

    shipped = {path.stem: path for path in shipped_configs()} | {key: preset.path for key, preset in PRESETS.items()}
    if name not in shipped:
        raise InputError(f"{name}: no shipped configuration or preset (see: care-train configs, care-train presets)")
    click.echo(shipped[name].read_text(encoding="utf-8"), nl=False)


@click.command()
@click.argument("config")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="TOML file to write. Default: none.")
@click.option("--processes", default=8, show_default=True, type=click.IntRange(min=1), help="Number of GPUs.")
@click.option(
    "--tflops",
    default=400.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Operations that a GPU does in a second, in 10^12.",
)
@set_option
def init(config: str, output: Path | None, processes: int, tflops: float, overrides: tuple[str, ...]) -> None:
    """Print what CONFIG will cost, from the shapes of its models and the data, and write it as a file to edit.

    \b
    Example:
      care-train init tiny --output my.toml
    """
    from care_trainer.config import find_config, load_run
    from care_trainer.config.load import overridden_text

    path = find_config(config)
    with needs_extra("train", "training"):
        from care_trainer.stages.cost import describe_cost
    cost = describe_cost(load_run(path, overrides), processes, tflops)
    click.echo(cost)
    if output is not None:
        if output.exists():
            raise InputError(f"{output}: exists; give another file")
        head = "\n".join(
            ["# Expected cost when this file was written:", *(f"#   {line}" for line in cost.splitlines())]
        )
        output.write_text(f"{head}\n\n{overridden_text(path, overrides)}", encoding="utf-8")


@click.command()
def presets() -> None:
    """List the paper's comparisons, with the table of each.

    \b
    Example:
      care-train presets
    """
    from care_trainer.config.presets import PRESETS

    for name, preset in PRESETS.items():
        click.echo(f"{name:<24}{preset.table:<9}{preset.description}")
