"""``care-train configs``, ``presets`` and ``init``: what is shipped, listed or written."""

from pathlib import Path

import click

from care_qdrant.errors import InputError


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
    """Print the commented TOML of the shipped configuration NAME.

    \b
    Example:
      care-train configs show nano
    """
    from care_trainer.config import find_config

    click.echo(find_config(name).read_text(encoding="utf-8"), nl=False)


@click.command()
@click.argument("config")
@click.option("--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="TOML file to write.")
def init(config: str, output: Path) -> None:
    """Write CONFIG as a commented file to edit; `care-train rehearse` measures what it will cost.

    \b
    Example:
      care-train init tiny --output my.toml
    """
    from care_trainer.config import find_config, load_run

    path = find_config(config)
    load_run(path)
    if output.exists():
        raise InputError(f"{output}: exists; give another file")
    output.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")


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
