"""``care-bench fetch``."""

import sys
from pathlib import Path

import click


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--cmedteb",
    envvar="CARE_CMEDTEB",
    show_envvar=True,
    metavar="REPOSITORY",
    help="Hub data set that holds CMedTEB, as organisation/name; goes to --directory.",
)
@click.option("--revision", help="Branch, tag or commit of that data set.")
@click.option(
    "--directory", type=click.Path(path_type=Path, file_okay=False), default=Path("CMedTEB"), show_default=True
)
def command(names: tuple[str, ...], cmedteb: str | None, revision: str | None, directory: Path) -> None:
    """Download the sets NAMES of mteb (all four where none is named) into the cache that runs read.

    Where CMedTEB is published could not be confirmed when this was written, so its repository is an option. The
    exit code is 1 where a set cannot be had.

    \b
    Example:
      care-bench fetch CMedQAv1-reranking CMedQAv2-reranking
      care-bench fetch --cmedteb organisation/CMedTEB --directory CMedTEB
    """
    from care_benchmarks.fetch import CMEDTEB, fetch_directory, fetch_task
    from care_benchmarks.tasks import HUB_TASKS

    wanted = names or (() if cmedteb else HUB_TASKS)
    failed = False
    for fetched in [
        *(fetch_task(name) for name in wanted),
        *([fetch_directory(CMEDTEB, cmedteb, directory, revision)] if cmedteb else []),
    ]:
        click.echo(f"{fetched.name}: {'usable' if fetched.usable else 'cannot be had'}: {fetched.detail}")
        failed |= not fetched.usable
    if failed:
        sys.exit(1)
