"""A collection that is read by slices, by one process and by several: every point once, whoever reads it."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.readable import SLICES_SINCE, PointId
from care_qdrant.qdrant.slices import Note, Slice, read_slices, slices_of, stateless
from tests.databases import require_server
from tests.standin import StandIn

POINTS = 200


@pytest.fixture
def sliced(server: StandIn) -> StandIn:
    """A server that knows slices."""
    with open_client(url=server.url) as client:
        require_server(client, SLICES_SINCE)
    return server


def fill(client: QdrantClient) -> None:
    client.create_collection("docs", models.VectorParams(size=1, distance=models.Distance.DOT))
    client.upsert("docs", [models.PointStruct(id=number, vector=[1.0]) for number in range(POINTS)])


def read_ids(place: Collection, slice_: Slice, note: Note) -> list[PointId]:
    found = [point_id for page in place.ids(slice_.where) for point_id in page]
    note(len(found))
    return found


def refuse(place: Collection, slice_: Slice, note: Note) -> None:
    if slice_.number == 2:
        raise InputError("the third slice cannot be read")


@pytest.mark.parametrize("readers", [1, 3])
def test_every_point_is_read_once(sliced: StandIn, readers: int) -> None:
    with open_client(url=sliced.url) as client:
        fill(client)
        place, read = Collection(client, "docs", readers=readers), list[int]()
        slices = slices_of(place, 4)
        found = read_slices(place, partial(stateless, read_ids), slices, read.append)
        again = [read_ids(place, slices[number], lambda _: None) for number in (3, 1)]
    assert len(found) == 4 and all(len(ids) > POINTS // 8 for ids in found)
    assert sorted(map(int, (each for ids in found for each in ids))) == list(range(POINTS))
    assert again == [found[3], found[1]]
    assert read == sorted(read) and read[-1] == POINTS


@pytest.mark.parametrize("readers", [1, 2])
def test_the_error_of_a_reader_comes_out(sliced: StandIn, readers: int) -> None:
    with open_client(url=sliced.url) as client:
        fill(client)
        place = Collection(client, "docs", readers=readers)
        with pytest.raises(InputError, match="the third slice cannot be read"):
            read_slices(place, partial(stateless, refuse), slices_of(place, 4))


@pytest.mark.parametrize("kind", ["embedded", "old"])
def test_what_knows_no_slices_is_read_at_once(kind: str, tmp_path: Path) -> None:
    with StandIn(version="1.18.3") as old:
        opened = open_client(url=old.url) if kind == "old" else open_client(path=tmp_path / "qdrant")
        with opened as client:
            fill(client)
            place = Collection(client, "docs", readers=4)
            slices = slices_of(place, 4)
            [found] = read_slices(place, partial(stateless, read_ids), slices)
    assert found == list(range(POINTS))


def test_a_client_that_others_opened_is_used_in_this_process(sliced: StandIn) -> None:
    client = QdrantClient(url=sliced.url, check_compatibility=False)
    fill(client)
    place = Collection(client, "docs", readers=2)
    here = list[int]()

    def read_here(place: Collection, slice_: Slice, note: Note) -> None:
        """Read a slice; a function of a function, which no other process can be given."""
        here.append(slice_.number)

    read_slices(place, lambda: nullcontext(read_here), slices_of(place, 4))
    client.close()
    assert here == [0, 1, 2, 3]
