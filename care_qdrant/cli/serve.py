"""``care serve``: the pair as a service."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from care_qdrant.console.groups import CONTEXT, GroupedCommand
from care_qdrant.console.options import Target, device_option, precision_option, target_options

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from qdrant_client import QdrantClient

    from care_qdrant.model.pair import CareModel, Precision


@click.command(
    name="serve",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    groups={
        "Options": ["models", "documents", "collections", "path", "url", "host", "port", "workers", "keys"],
        "Operation": ["page", "access_log", "drain_seconds"],
        "Model and server": ["device", "precision", "grpc_port"],
    },
)
@click.option(
    "--model",
    "models",
    multiple=True,
    default=["built-in"],
    show_default=True,
    envvar="CARE_MODEL",
    show_envvar=True,
    help="Pair to serve: CARE folder, hub name or built-in. Repeatable; the first one is the default.",
)
@click.option("--documents", is_flag=True, help="Serve the document encoders, too.")
@click.option("--collection", "collections", multiple=True, help="Collection or alias to search. Repeatable.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 takes a free one."
)
@click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes; each encodes on one core."
)
@click.option(
    "--keys",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of API keys, one a line, read again when it changes.  [default: everybody is served]",
)
@click.option("--page/--no-page", default=True, show_default=True, help="Serve the search page at /.")
@click.option(
    "--access-log/--no-access-log", default=True, show_default=True, help="Print each request as a line of JSON."
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(0),
    default=3.0,
    show_default=True,
    help="Time that clients get to open new connections when a worker ends, in seconds.",
)
@target_options
@device_option
@precision_option
def command(
    models: tuple[str, ...],
    documents: bool,
    collections: tuple[str, ...],
    host: str,
    port: int,
    workers: int,
    keys: Path | None,
    page: bool,
    access_log: bool,
    drain_seconds: float,
    target: Target,
    device: str | None,
    precision: "Precision",
) -> None:
    """Serve encoders and searches over HTTP.

    A Qdrant server whose QDRANT__INFERENCE__ADDRESS is http://HOST:PORT/inference then takes texts wherever its
    clients would send vectors. OpenAI clients use http://HOST:PORT/v1. SIGHUP loads the pairs again without a gap.

    \b
    Example:
      care serve
      care serve --collection articles --url http://localhost:6333 --workers 2 --keys keys.txt --host 0.0.0.0
    """
    from care_qdrant.errors import InputError
    from care_qdrant.serve.settings import LOOPBACK, ServeSettings
    from care_qdrant.serve.supervisor import serve

    if collections and target.path is not None and workers > 1:
        raise InputError(
            f"{target.path}: the embedded database belongs to one process; give --workers 1, or a server by --url"
        )

    def load_models() -> "list[CareModel]":
        from care_qdrant.model.pair import CareModel

        return [CareModel.load(model, device=device, precision=precision) for model in models]

    def open_qdrant() -> "AbstractContextManager[QdrantClient]":
        from care_qdrant.qdrant.connection import open_client

        # Shorter than elsewhere: somebody waits, and each search has three attempts.
        return open_client(
            path=target.path, url=target.url, api_key=target.api_key, grpc=target.grpc, timeout_seconds=10
        )

    _set_up_access_log(access_log)
    settings = ServeSettings(
        load_models=load_models,
        open_qdrant=open_qdrant,
        collections=collections,
        documents=documents,
        keys_file=keys,
        host=host,
        port=port,
        workers=workers,
        drain_seconds=drain_seconds,
        page=page,
    )
    if host not in LOOPBACK and keys is None:
        click.echo(f"warning: whoever can reach {host} may use this service; give --keys FILE", err=True)
    serve(settings, lambda address: click.echo(f"serving on {address}", err=True))


def _set_up_access_log(wanted: bool) -> None:
    """Send the access log to stdout, where it is wanted; everything else goes where the program's log goes."""
    access = logging.getLogger("care_qdrant.serve.access")
    access.propagate = False
    access.setLevel(logging.INFO if wanted else logging.WARNING)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(handler)
