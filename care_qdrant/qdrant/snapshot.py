"""A whole collection copied by the server itself."""

from contextlib import closing
from functools import partial
from urllib.parse import quote

from qdrant_client import QdrantClient, models

from care_qdrant.errors import Rejected
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.retry import RetryPolicy


def recover_snapshot(source: Collection, target: Collection, longest_seconds: float) -> None:
    """Let the server make a snapshot of one collection, recover it into another, and delete it; one attempt each."""
    options = source.client.init_options
    with closing(QdrantClient(**{**options, "timeout": max(1, round(longest_seconds))})) as client:
        # One attempt: a second snapshot, or a recovery over one that still goes on, would do more harm than an error.
        origin, copy = (Collection(client, each.name, RetryPolicy(attempts=1)) for each in (source, target))
        snapshot = origin.call("making a snapshot", lambda: client.create_snapshot(origin.name, wait=True))
        if snapshot is None:
            raise Rejected(f"the server made no snapshot of collection {origin.name!r}: leave out --via snapshot")
        place = f"collections/{quote(origin.name)}/snapshots/{quote(snapshot.name)}"
        recover = partial(
            client.recover_snapshot,
            copy.name,
            location=f"{str(options['url']).rstrip('/')}/{place}",
            api_key=options["api_key"],
            checksum=snapshot.checksum,
            priority=models.SnapshotPriority.SNAPSHOT,
            wait=True,
        )
        try:
            copy.call("recovering the snapshot", recover)
        finally:
            origin.call("deleting it", lambda: client.delete_snapshot(origin.name, snapshot.name, wait=True))
