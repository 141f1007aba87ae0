"""Runs that are killed with SIGKILL after an exact number of requests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from care_qdrant.index.promote import promote_collection
from care_qdrant.index.publish import publish_collection
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from tests.reliability.trials import FORKSERVER
from tests.standin import StandIn


def kill_after(server: StandIn, requests: int, run: Callable[..., None], *arguments: Any) -> None:
    """Start a run, and kill it after it has sent that many requests, unless it is done before."""
    until = len(server.requests) + requests
    process = FORKSERVER.Process(target=run, args=arguments)
    process.start()
    while len(server.requests) < until and process.is_alive():
        process.join(0.001)
    process.kill()
    process.join()


def run_promote(path: Path, url: str) -> None:
    with open_client(path=path) as folder, open_client(url=url) as client:
        promote_collection(Collection(folder, "docs"), Collection(client, "docs"))


def run_publish(url: str) -> None:
    with open_client(url=url) as client:
        publish_collection(client, "docs", "live")
