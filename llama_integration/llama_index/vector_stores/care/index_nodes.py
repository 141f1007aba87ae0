"""Index and image nodes: LlamaIndex's index keeps these alone of the nodes that it adds to a store of texts."""

from collections.abc import Sequence

from llama_index.core.schema import BaseNode
from llama_index.vector_stores.care.points import as_point_id, is_listed, is_listed_point

from care_qdrant.qdrant.collection import Collection


class IndexNodes:
    """The index and image nodes of one store, as far as it has met them.

    `VectorStoreIndex.as_retriever` names the whole list of its index in each query. Taken as a restriction, one such
    node hides all texts. A list has all such nodes of a call of `add`, or none, so a query that names some of them
    means those.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._added_with: dict[str, frozenset[str]] = {}
        # For each of them that this object added, those of the same call.

    def note(self, nodes: Sequence[BaseNode]) -> None:
        """Remember the index and image nodes of one call of `add`."""
        added = frozenset(node.node_id for node in nodes if is_listed(node))
        self._known |= added
        self._added_with |= dict.fromkeys(added, added)

    def are_a_list(self, collection: Collection, node_ids: Sequence[str]) -> bool:
        """Return whether an index may have named these nodes as its list, so that nobody restricts the query."""
        asked = set(node_ids)
        if unknown := asked - self._known:
            ids = [point_id for one in unknown if (point_id := as_point_id(one)) is not None]
            found = collection.retrieve(ids, payload=["_node_type"])
            listed = {str(point_id) for point_id, record in found.items() if is_listed_point(record)}
            self._known |= {one for one in unknown if str(as_point_id(one)) in listed}
            if len(listed) < len(found):
                return False
        return bool(asked & self._known) and all(self._added_with.get(one, asked) <= asked for one in asked)
