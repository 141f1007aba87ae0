"""A client of several nodes of a cluster: calls go to one node until it does not answer, and then to another."""

import logging
from collections.abc import Sequence

from qdrant_client import QdrantClient
from qdrant_client.http.exceptions import UnexpectedResponse

from care_qdrant.errors import InputError, Unreachable, redact
from care_qdrant.forking import ForkLock
from care_qdrant.qdrant.retry import describe_error

logger = logging.getLogger(__name__)


class ClusterClient(QdrantClient):
    """A `QdrantClient` whose calls go to one of several nodes; `leave` makes them go to another.

    Nodes are told to be of one cluster by the random ids of its peers, so that no call goes to a database that only
    stands beside it.
    """

    def __init__(self, nodes: Sequence[tuple[str, QdrantClient]]) -> None:  # the connections are made already
        """Take the first node that answers."""
        self._urls = [redact(url) for url, _ in nodes]
        self._clients = [client for _, client in nodes]
        self._peers: set[str] = set()
        self._current = 0
        self._choice = ForkLock()
        problems, answered = [], []
        for number in range(len(nodes)):
            try:
                self._join(number)
                answered.append(number)
            except InputError:
                raise
            except Exception as error:
                problems.append(f"{self._urls[number]} ({describe_error(error)})")
        if not answered:
            raise Unreachable(f"no node of the cluster answers: {'; '.join(problems)}")
        for problem in problems:
            logger.warning("a node of the cluster does not answer: %s", problem)
        # What a client holds besides its connections, as the options of its start; a second start would warn again.
        vars(self).update(vars(self._clients[answered[0]]))
        self._use(answered[0])

    @property
    def node(self) -> int:
        """Return the number of the node that calls go to now."""
        return self._current

    def leave(self, node: int) -> None:
        """Let calls go to the next node that answers, unless they have left ``node`` already.

        Where no other answers, nothing changes.
        """
        with self._choice:
            if self._current != node:
                return
            for step in range(1, len(self._clients)):
                number = (node + step) % len(self._clients)
                try:
                    self._join(number)
                except Exception as error:
                    logger.debug("%s: is not used (%s)", self._urls[number], describe_error(error))
                    continue
                logger.warning("%s does not answer; going on with %s", self._urls[node], self._urls[number])
                self._use(number)
                return

    def close(self, grpc_grace: float | None = None, **kwargs: object) -> None:
        """Close the connections to all nodes."""
        for client in self._clients:
            client.close(grpc_grace=grpc_grace, **kwargs)

    def _use(self, number: int) -> None:
        self._current = number
        self._client = self._clients[number]._client

    def _join(self, number: int) -> None:
        """Ask a node for the peers of its cluster."""
        url = self._urls[number]
        try:
            status = self._clients[number].http.distributed_api.cluster_status().result
        except UnexpectedResponse as error:
            if error.status_code not in (401, 403):
                raise
            raise InputError(
                f"{url}: this API key may not read the state of the cluster, so it is not known whether several URLs "
                "are nodes of one; give one URL, as that of a load balancer"
            ) from error
        peers = set(getattr(status, "peers", None) or ())
        if not peers:
            raise InputError(f"{url}: is not a node of a cluster; give one URL")
        if self._peers and not peers & self._peers:
            raise InputError(f"{url}: is a node of another cluster than {self._urls[0]}; give the nodes of one")
        self._peers |= peers
