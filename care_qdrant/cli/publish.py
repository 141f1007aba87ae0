"""``care publish``: switch an alias to a verified copy, and back."""

from typing import TYPE_CHECKING

import click

from care_qdrant.console.groups import CONTEXT, Command
from care_qdrant.console.options import Target, json_option, target_options
from care_qdrant.console.reports import show_report
from care_qdrant.console.text import echo
from care_qdrant.errors import counted

if TYPE_CHECKING:
    from care_qdrant.versions.publish import PublicationReport, RollbackReport


@click.command(cls=Command, name="publish", context_settings=CONTEXT)
@click.argument("collection")
@click.option("--as", "alias", help="Alias that readers search.  [default: COLLECTION, where it is an alias]")
@target_options
@click.option("--rollback", is_flag=True, help="Switch the alias back to the previous version; copy nothing.")
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    help="Number of former versions to keep; older ones are deleted.  [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Report what would be done, and write nothing.")
@json_option
def command(
    collection: str, alias: str | None, target: Target, rollback: bool, keep: int | None, dry_run: bool, as_json: bool
) -> None:
    """Copy COLLECTION to the next version of an alias, verify the copy, and switch the alias.

    The versions are collections named ALIAS_v1, ALIAS_v2 and so on. Readers of the alias see the former version until
    the switch. To continue an interrupted run, run the same command again.

    \b
    Example:
      care publish corpus --as medical --url http://localhost:6333 --keep 2
      care publish medical --rollback --url http://localhost:6333
    """
    from care_qdrant.progress import points_bar
    from care_qdrant.versions.publish import PublishSettings, publish_collection, roll_back

    report: PublicationReport | RollbackReport
    with target.open() as client:
        if rollback:
            report = roll_back(client, alias or collection, dry_run=dry_run)
            said = _rolled_back(report)
        else:
            with points_bar(collection) as show:
                report = publish_collection(client, collection, alias, PublishSettings(keep, dry_run), on_progress=show)
            said = _published(report)
    if as_json:
        show_report(report, as_json=True)
    else:
        echo(f"dry run, nothing was written: {said}" if dry_run else said)


def _published(report: "PublicationReport") -> str:
    copied = report.copied
    parts = [f"{report.alias} → {report.version} ({counted(copied.points, 'point')} of {report.source})"]
    if report.replaces not in (None, report.version):
        parts.append(f"{report.replaces} is {'deleted' if report.replaces in report.deleted_versions else 'kept'}")
    if others := [name for name in report.deleted_versions if name != report.replaces]:
        parts.append(f"deleted: {', '.join(others)}")
    return "; ".join(parts)


def _rolled_back(report: "RollbackReport") -> str:
    lost = f"; what was written to {report.alias} since is in {report.left} only" if report.left_points else ""
    return (
        f"{report.alias} → {report.version} ({counted(report.points, 'point')}); {report.left} is kept "
        f"({counted(report.left_points, 'point')}){lost}"
    )
