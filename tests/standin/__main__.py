"""Run the stand-in as its own process and print its URL."""

import threading
from importlib import import_module

import click

from tests.standin.server import StandIn

_ENGINES = {
    "local": "tests.standin.engine:Engine",
    "counting": "tests.standin.counting:CountingEngine",
}


@click.command()
@click.option("--port", default=0, help="0 takes a free one.")
@click.option("--path", default=None, help="Folder of the engine's data; without it, they are kept in memory.")
@click.option("--version", default="1.19.0", help="The version to report.")
@click.option(
    "--engine",
    type=click.Choice(list(_ENGINES)),
    default="local",
    help="qdrant-client's local mode; or, for measuring a client: only ids are remembered.",
)
def main(port: int, path: str | None, version: str, engine: str) -> None:
    """Serve until the process is ended."""
    module, _, name = _ENGINES[engine].partition(":")
    with StandIn(port=port, path=path, version=version, engine=getattr(import_module(module), name)) as server:
        click.echo(server.url)
        threading.Event().wait()


main()
