"""Fixtures that every area shares. Nothing here reaches a network."""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")
for name in ("QDRANT_API_KEY", "CARE_MODEL"):
    os.environ.pop(name, None)

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from qdrant_client import QdrantClient
from qdrant_client.local.persistence import CollectionPersistence

from care_qdrant.errors import ServerTooOld
from tests import tiny
from tests.databases import REAL, WIRES, open_database, open_wire
from tests.forks import FORKS
from tests.reliability.processes import BINARY, QdrantServer
from tests.standin import StandIn

# A machine that is busy is no failure of an example; which examples are drawn is said by --hypothesis-seed.
hypothesis.settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """Let embedded databases not wait for the disk at each point: a killed process loses nothing by it."""
    opened = CollectionPersistence.__init__

    def open_unsynced(self: CollectionPersistence, *args: Any, **kwargs: Any) -> None:
        opened(self, *args, **kwargs)
        self.storage.execute("PRAGMA synchronous = OFF")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CollectionPersistence, "__init__", open_unsynced)
        yield


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CARE folder with a tiny random pair, and an ONNX query encoder. Never write into it: copy it."""
    return tiny.care_folder(tmp_path_factory.mktemp("pair") / "tiny-pair", onnx=True)


@pytest.fixture(scope="session")
def own_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real server whose collections may be deleted: one of the program QDRANT_BINARY."""
    if not BINARY:
        pytest.skip("QDRANT_BINARY names no server program")
    with QdrantServer(BINARY, tmp_path_factory.mktemp("qdrant")) as server:
        yield server.url


@pytest.fixture(scope="session")
def real_url(request: pytest.FixtureRequest) -> str:
    """The URL of a real server: the one that QDRANT_URL names, or one of the program QDRANT_BINARY."""
    url: str | None = os.environ.get("QDRANT_URL")
    return url or request.getfixturevalue("own_url")


@pytest.fixture(params=["embedded", *REAL])
def client(request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    """An empty Qdrant, in memory and on a real server."""
    with open_database(request) as client:
        yield client


@pytest.fixture(params=["embedded", "server", *REAL])
def qdrant(request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    """An empty Qdrant of each kind: in memory, the stand-in, and a real server."""
    with open_database(request) as client:
        yield client


@pytest.fixture(params=WIRES)
def server(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    """An empty server with faults on demand: the stand-in alone, and in front of a real one."""
    with open_wire(request) as server:
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have slow tests, so that no worker is left alone with one of them at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Keep what is imported by now out of garbage collections, which took half of the time of the training tests."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    FORKS.end()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """The name of a parameter's value in the test's name: bytes may hold a time, and two workers must agree."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Skip a test on a real server that is too old for it, with the version in the reason."""
    try:
        return (yield)
    except ServerTooOld as error:
        if item.get_closest_marker("server") is None:
            raise
        pytest.skip(str(error))


pytest_runtest_call = pytest_runtest_setup
