"""``care promote``: copy a collection from the embedded database to a server."""

from pathlib import Path

import click

from care_qdrant.console.groups import CONTEXT, Command
from care_qdrant.console.options import Target, grpc_port, json_option, path_option, server_key, url_option
from care_qdrant.console.reports import show_report


@click.command(cls=Command, name="promote", context_settings=CONTEXT)
@click.argument("collection")
@path_option
@url_option
@click.option("--to", "name", help="Name of the collection on the server.  [default: the same name]")
@click.option("--overwrite", is_flag=True, help="Replace points of the server that have other content.")
@click.option("--dry-run", is_flag=True, help="Compare, and write nothing.")
@json_option
def command(
    collection: str,
    path: Path | None,
    url: str | None,
    name: str | None,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Copy COLLECTION from the embedded database of a folder to a Qdrant server.

    Ids, payloads, vectors and model records are copied unchanged. To continue an interrupted run, run the same command
    again. After a finished copy, the same command compares every point.

    \b
    Example:
      care promote corpus --url http://localhost:6333
      care promote corpus --path ./qdrant --url http://localhost:6333 \\
        --to corpus-2024 --dry-run
    """
    from care_qdrant.progress import points_bar
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.versions.copy import CopySettings
    from care_qdrant.versions.promote import promote_collection

    if url is None:
        raise click.UsageError("a promotion needs a server: give --url")
    settings = CopySettings(overwrite=overwrite, dry_run=dry_run)
    source, target = Target(path or Path("qdrant"), None), Target(None, url, server_key(url), grpc_port())
    with source.open() as folder, target.open() as server, points_bar(collection) as show:
        report = promote_collection(
            Collection(folder, collection), Collection(server, name or collection), settings, on_progress=show
        )
    show_report(report, as_json=as_json)
