"""Run the stand-in as its own process and print its URL."""

import threading

import click

from tests.standin.counting import CountingEngine
from tests.standin.engine import Engine
from tests.standin.server import StandIn
from tests.standin.synthetic import SyntheticEngine


@click.command()
@click.option("--port", default=0, help="0 takes a free one.")
@click.option("--path", default=None, help="Folder of the engine's data; without it, they are kept in memory.")
@click.option("--version", default="1.19.0", help="The version to report.")
@click.option("--counting", is_flag=True, help="Remember only the ids of points, for measuring a client.")
@click.option("--edge", is_flag=True, help="Search by Qdrant's own engine, over points in --path.")
@click.option("--synthetic", is_flag=True, help="Compute points from their ids, for measuring a client.")
def main(port: int, path: str | None, version: str, counting: bool, edge: bool, synthetic: bool) -> None:
    """Serve until the process is ended."""
    engine = _edge_engine() if edge else CountingEngine if counting else SyntheticEngine if synthetic else Engine
    with StandIn(port=port, path=path, version=version, engine=engine) as server:
        click.echo(server.url)
        threading.Event().wait()


def _edge_engine() -> type[Engine]:
    from tests.standin.edge import EdgeEngine

    return EdgeEngine


main()
