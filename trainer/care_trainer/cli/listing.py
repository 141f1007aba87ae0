"""``care-train configs`` and ``presets``: what is shipped, listed or shown."""

import click


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
    """Print the commented TOML of the shipped configuration NAME; redirected into a file, it is a copy to edit.

    \b
    Example:
      care-train configs show nano > my.toml
    """
    from care_trainer.config import find_config

    click.echo(find_config(name).read_text(encoding="utf-8"), nl=False)


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
