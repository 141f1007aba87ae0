"""A Qdrant server for tests: HTTP on a real socket over qdrant-client's local mode, with faults on demand.

With ``upstream=url`` the real server there answers instead, behind the same faults.

    with StandIn(max_bytes=1_000_000) as server:
        server.faults.add("429", times=2, method="PUT", path="/points$", seconds=1)
        client = QdrantClient(url=server.url, timeout=2)
"""

from tests.standin.faults import Fault, Faults
from tests.standin.server import Request, StandIn

__all__ = ["Fault", "Faults", "Request", "StandIn"]
