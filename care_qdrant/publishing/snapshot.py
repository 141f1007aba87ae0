"""Fills a collection from a server's own snapshot of another one: no point passes through here, no index is rebuilt."""

import contextlib
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError, Rejected
from care_qdrant.store.connection import is_embedded
from care_qdrant.store.retry import Collection, RetryPolicy


def require_snapshots(link: Collection) -> None:
    """Refuse a Qdrant that has no snapshots of whole collections.

    Raises:
        InputError: the database is embedded, or the server has several nodes, each of which makes a snapshot of its
            own part.
    """
    if is_embedded(link.client):
        raise InputError("the embedded database makes no snapshots: leave out --via snapshot")
    status = link.call("asking for its nodes", link.client.cluster_status)
    if not isinstance(status, models.ClusterStatusOneOf):
        raise InputError(
            "this Qdrant has several nodes, and a snapshot holds the part of one: leave out --via snapshot"
        )


def fill_by_snapshot(source: Collection, target: Collection, longest_seconds: float) -> None:
    """Make an empty collection hold what another one of the same server holds.

    The server fetches the snapshot from itself, by the URL that this client uses.

    Args:
        source: To make a snapshot of; it is deleted afterwards, but not if this process is killed.
        target: An empty collection with the same vectors and number of shards; its metadata stay as they are.
        longest_seconds: How long one request may take.

    Raises:
        QdrantError: the server refused, or cannot fetch the snapshot.
    """
    with _patient(source.client, longest_seconds) as client:
        # Once: a second snapshot, or a recovery over one that still goes on, would do more harm than an error.
        origin, copy = (Collection(client, link.collection, RetryPolicy(attempts=1)) for link in (source, target))
        snapshot = origin.call("making a snapshot", lambda: client.create_snapshot(origin.collection, wait=True))
        if snapshot is None:
            raise Rejected(f"the server made no snapshot of collection {origin.collection!r}: leave out --via snapshot")
        try:
            copy.call("recovering the snapshot", lambda: _recover(client, copy.collection, origin.collection, snapshot))
        finally:
            origin.call("deleting it", lambda: client.delete_snapshot(origin.collection, snapshot.name, wait=True))


def _recover(client: QdrantClient, collection: str, source: str, snapshot: models.SnapshotDescription) -> bool | None:
    options = client.init_options
    place = f"collections/{quote(source)}/snapshots/{quote(snapshot.name)}"
    return client.recover_snapshot(
        collection,
        location=f"{str(options['url']).rstrip('/')}/{place}",
        api_key=options["api_key"],
        checksum=snapshot.checksum,
        priority=models.SnapshotPriority.SNAPSHOT,
        wait=True,
    )


@contextlib.contextmanager
def _patient(client: QdrantClient, timeout_seconds: float) -> Iterator[QdrantClient]:
    """Give a client of the same server that waits as long as a snapshot takes."""
    options = {**client.init_options, "timeout": max(1, round(timeout_seconds))}
    with closing(QdrantClient(**options)) as patient:
        yield patient
