"""``care publish``: switch an alias to a verified copy, and back."""

import click

from care_qdrant.console.groups import Command
from care_qdrant.console.options import Target, target_options
from care_qdrant.console.reports import show_report


@click.command(cls=Command, name="publish")
@click.argument("collection")
@click.option("--as", "alias", help="Alias that readers search.  [default: COLLECTION, where it is an alias]")
@target_options
@click.option("--rollback", is_flag=True, help="Switch the alias back to the version before; copy nothing.")
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    help="Number of former versions to keep; older ones are deleted.  [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Report what would be done, and write nothing.")
def command(
    collection: str, alias: str | None, target: Target, rollback: bool, keep: int | None, dry_run: bool
) -> None:
    """Copy COLLECTION to the next version of an alias, verify the copy, and switch the alias to it in one step.

    The versions are collections named ALIAS_v1, ALIAS_v2 and so on. Readers who search the alias see the former version
    until the switch. A run that was stopped at any moment is finished by the same command. The report is JSON in a
    pipe.

    \b
    Example:
      care publish corpus --as medical --url http://localhost:6333 --keep 2
      care publish medical --rollback --url http://localhost:6333
    """
    from care_qdrant.progress import points_bar
    from care_qdrant.versions.publish import PublishSettings, publish_collection, roll_back

    with target.open() as client:
        if rollback:
            show_report(roll_back(client, alias or collection, dry_run=dry_run))
            return
        settings = PublishSettings(keep, dry_run)
        with points_bar(collection) as show:
            report = publish_collection(client, collection, alias, settings, on_progress=show)
    show_report(report)
