"""A Qdrant server for tests: real HTTP on a real socket, and faults on demand.

The engine is qdrant-client's local mode, so collections, filters, fusion and sparse vectors are the real ones; what
local mode forgets (HNSW, quantization, strict mode, payload indexes) is kept and reported as a server reports it. With
``upstream=url`` the real server there answers instead, behind the same faults.

    with StandIn(version="1.17.1", max_bytes=1_000_000) as server:
        server.faults.add("429", times=2, method="PUT", path="/points$", seconds=1)
        client = QdrantClient(url=server.url, timeout=2)

Faults (`Faults.add`), each for the next ``times`` requests that match, after ``skip`` that pass:

====================  ====================================================================================
``500``               an internal error; nothing was applied
``429``               too many requests, with ``Retry-After: seconds``; nothing was applied
``timeout``           nothing is applied, and no answer for ``seconds``
``drop``              the request is applied, and the connection closes without an answer
``reset``             the connection is reset before anything is applied (a restarting server)
``wait_timeout``      applied, but the status is ``wait_timeout`` instead of ``completed``
``yellow``            the collection says that its optimizer works
====================  ====================================================================================

And by its attributes: ``max_bytes`` (413 above it), ``api_key`` and ``read_only_key`` (401, 403); `go_away`/`come_back`
(connection refused until told). The engine also has ``version`` (before 1.18, no route makes or deletes a named vector)
and the limits of strict mode (batch size, query limit, unindexed filters, number of points, bytes of vectors).
``server.requests`` has the log.

As its own process: ``python -m tests.standin --port 6399 --path folder``.
"""

from tests.standin.faults import Fault, Faults
from tests.standin.server import Request, StandIn

__all__ = ["Fault", "Faults", "Request", "StandIn"]
