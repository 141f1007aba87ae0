"""Index and image nodes: the only nodes that a LlamaIndex index lists itself if the store holds texts."""

from collections.abc import Iterable, Iterator, Sequence

from llama_index.core.schema import BaseNode
from llama_index.vector_stores.care.points import IS_LISTED, as_point_id, is_listed, is_listed_point, require_list
from qdrant_client import models
from qdrant_client.models import ExtendedPointId as PointId

from care_qdrant import Collection


class IndexNodes:
    """Remembers the index and image nodes of one store.

    `VectorStoreIndex.as_retriever` names the whole list of its index in each query. Taken as a restriction, one such
    node hides all texts. A list has all such nodes of a call of `add`, or none. So a query is not restricted if it
    names all such nodes of a call, or of the collection; a query that names only some of them is restricted.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._added_with: dict[str, frozenset[str]] = {}
        # Each added node, with the others of the same call.

    def note(self, nodes: Sequence[BaseNode]) -> None:
        """Remember the index and image nodes of one call of `add`; a text node may take the place of an earlier one."""
        added = frozenset(node.node_id for node in nodes if is_listed(node))
        self._known.difference_update(node.node_id for node in nodes)
        self._known |= added
        self._added_with |= dict.fromkeys(added, added)

    def are_a_list(self, collection: Collection, node_ids: Sequence[str]) -> bool:
        """Return whether an index may have named these nodes as its list, which does not restrict the query."""
        require_list("node ids", node_ids)
        asked = set(node_ids)
        if unknown := asked - self._known:
            stored = collection.retrieve(list(_point_ids(unknown)), payload=["_node_type"])
            is_listed_by = {str(point_id): is_listed_point(record) for point_id, record in stored.items()}
            found = {node_id: is_listed_by.get(str(as_point_id(node_id))) for node_id in unknown}
            self._known |= {node_id for node_id, is_listed in found.items() if is_listed}
            texts = {node_id for node_id, is_listed in found.items() if is_listed is False}
            # An index keeps the id of a node that became a text on its list.
            if texts - self._added_with.keys():
                return False
        if not asked & self._known:
            return False
        if asked <= self._added_with.keys():
            return all(self._added_with[node_id] <= asked for node_id in asked)
        return not _has_others(collection, asked)


def _point_ids(node_ids: Iterable[str]) -> Iterator[PointId]:
    return (point_id for node_id in node_ids if (point_id := as_point_id(node_id)) is not None)


def _has_others(collection: Collection, node_ids: Iterable[str]) -> bool:
    """Return whether a collection has index or image nodes besides these."""
    others = models.Filter(must=[IS_LISTED], must_not=[models.HasIdCondition(has_id=list(_point_ids(node_ids)))])
    return any(collection.scroll("looking for other index nodes", where=others, limit=1, payload=False, as_seen=True))
