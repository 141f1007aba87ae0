"""``care-train push``: a CARE folder to a hub."""

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("repository")
@click.option("--public", is_flag=True, help="Create a public repository, or upload to one. Without it, private only.")
def push(folder: Path, repository: str, public: bool) -> None:
    """Upload the CARE folder FOLDER to REPOSITORY on the Hugging Face hub, and print the commit's address.

    \b
    Example:
      care-train push runs/nano/care-nano organisation/care-nano
    """
    from care_trainer.export.hub import push as upload

    click.echo(upload(folder, repository, private=not public))
