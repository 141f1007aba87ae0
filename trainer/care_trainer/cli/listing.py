"""``care-train configs`` and ``care-train presets``: the shipped TOML files, listed or printed."""

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
def presets() -> None:
    """List the paper's comparisons, with the table of each.

    \b
    Example:
      care-train presets
    """
    from care_trainer.config.presets import PRESETS

    for name, preset in PRESETS.items():
        click.echo(f"{name:<24}{preset.table:<9}{preset.description}")
