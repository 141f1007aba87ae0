"""A `CareVectorStore` that is given a URL opens it as every other part of this package does."""

import threading
import time

import pytest
from llama_index.vector_stores.care import CareVectorStore

from care_qdrant.errors import Rejected, ServerTooOld
from tests.reliability.processes import free_port
from tests.standin import StandIn


def test_a_server_that_is_too_old_is_refused() -> None:
    with StandIn(version="1.17.1") as server, pytest.raises(ServerTooOld, match=r"1\.17\.1"):
        CareVectorStore("notes", url=server.url)


def test_a_wrong_key_is_refused_when_the_store_is_opened() -> None:
    with StandIn(api_key="right") as server, pytest.raises(Rejected, match="API key"):
        CareVectorStore("notes", url=server.url, api_key="wrong")


def test_a_server_that_is_still_starting_is_waited_for() -> None:
    port = free_port()
    servers: list[StandIn] = []
    starting = threading.Timer(0.5, lambda: servers.append(StandIn(port=port).__enter__()))
    starting.start()
    began = time.monotonic()
    store = CareVectorStore("notes", url=f"http://127.0.0.1:{port}", client_kwargs={"timeout": 7})
    starting.join()
    assert time.monotonic() - began > 0.4
    assert store.client.init_options["timeout"] == 7
    store.client.close()
    servers[0].__exit__(None, None, None)
