"""Run the stand-in as its own process and print its URL."""

import threading

import click

from tests.standin.server import StandIn


@click.command()
@click.option("--port", default=0, help="0 takes a free one.")
@click.option("--path", default=None, help="Folder of the engine's data; without it, they are kept in memory.")
@click.option("--version", default="1.19.0", help="The version to report.")
def main(port: int, path: str | None, version: str) -> None:
    """Serve until the process is ended."""
    with StandIn(port=port, path=path, version=version) as server:
        click.echo(server.url)
        threading.Event().wait()


main()
