"""The shards of a real cluster: moves and copies them from node to node, and compares their replicas."""

import time
from itertools import cycle
from typing import Any, Literal

import httpx
from qdrant_client import QdrantClient

from tests.reliability.sample_collection import Contents, differing, point_contents

SETTLED_SECONDS = 300.0
_METHODS = cycle(["stream_records", "snapshot", None])
"""Methods by which records go from node to node; None is the server's own choice."""


def shard_collections(url: str) -> list[str]:
    """Return the names of the collections of a cluster."""
    return sorted(each["name"] for each in _get(f"{url}/collections")["collections"])


def transfer_shards(url: str, collection: str) -> int:
    """Move every shard to a node without it, or copy it; return how many transfers the server accepted."""
    peers = [int(peer) for peer in _get(f"{url}/cluster")["peers"]]
    accepted = 0
    for shard, holders in _holders(url, collection).items():
        others = [peer for peer in peers if peer not in holders]
        if not others:
            continue
        transfer: dict[str, Any] = {"shard_id": shard, "from_peer_id": holders[0], "to_peer_id": others[0]}
        if (method := next(_METHODS)) is not None:
            transfer["method"] = method
        kind: Literal["move_shard", "replicate_shard"] = "move_shard" if shard % 2 == 0 else "replicate_shard"
        answer = httpx.post(f"{url}/collections/{collection}/cluster", json={kind: transfer}, timeout=60)
        accepted += answer.is_success
    return accepted


def await_settled(urls: list[str]) -> None:
    """Wait until every node says that all replicas are active and none is being transferred."""
    until = time.monotonic() + SETTLED_SECONDS
    while unsettled := [what for url in urls for what in _unsettled(url)]:
        if time.monotonic() > until:
            raise RuntimeError(f"the shards of the cluster do not come to rest: {unsettled[:5]}")
        time.sleep(0.1)


def compare_replicas(urls: list[str]) -> tuple[int, int]:
    """Read each node's own replicas and the points of all; return the points, and how many are not equal everywhere."""
    points = unequal = 0
    for collection in shard_collections(urls[0]):
        readings = [_read(url, collection, consistency) for url in urls for consistency in (1, "all")]
        points += len(readings[0])
        unequal += max(differing(one, readings[0]) + len(readings[0].keys() - one.keys()) for one in readings)
    return points, unequal


def _read(url: str, collection: str, consistency: Any) -> Contents:
    client = QdrantClient(url=url, timeout=60, check_compatibility=False)
    records, _ = client.scroll(
        collection, limit=1_000_000, with_payload=True, with_vectors=True, consistency=consistency
    )
    client.close()
    return {record.id: point_contents(record) for record in records}


def _unsettled(url: str) -> list[str]:
    """Return what is not at rest, as a node sees it; a node that does not answer, or not yet, is not at rest."""
    found = []
    try:
        for collection in shard_collections(url):
            state = _get(f"{url}/collections/{collection}/cluster")
            found += [f"{collection}: transfer of shard {each['shard_id']}" for each in state["shard_transfers"]]
            replicas = [*state["local_shards"], *state["remote_shards"]]
            found += [f"{collection}: {each['state']}" for each in replicas if each["state"] != "Active"]
    except httpx.HTTPError as error:
        found.append(f"{url}: {error}")
    return found


def _holders(url: str, collection: str) -> dict[int, list[int]]:
    """Return which nodes have each shard, those with an active replica."""
    answer = httpx.get(f"{url}/collections/{collection}/cluster", timeout=60)
    if answer.status_code == httpx.codes.NOT_FOUND:
        return {}  # deleted since it was listed
    state = answer.raise_for_status().json()["result"]
    here = [{**shard, "peer_id": state["peer_id"]} for shard in state["local_shards"]]
    holders: dict[int, list[int]] = {}
    for replica in [*here, *state["remote_shards"]]:
        holders.setdefault(replica["shard_id"], [])
        if replica["state"] == "Active":
            holders[replica["shard_id"]].append(replica["peer_id"])
    return {shard: peers for shard, peers in holders.items() if peers}


def _get(url: str) -> Any:
    return httpx.get(url, timeout=60).raise_for_status().json()["result"]
