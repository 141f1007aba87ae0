"""The dynamic index filter against its definition, with killed runs between."""

import json
from pathlib import Path

import numpy as np
import pytest
from care_data import diversify
from care_data.diversify import Filter, QdrantIndex, diversify_file
from care_trainer.data.diversity import BATCH_ROWS, Neighbourhood
from qdrant_client import QdrantClient, models

from care_qdrant import Collection, open_client
from care_qdrant.errors import InputError
from tests.reliability.ready_model import ReadyEncoder


def clustered(count: int, dim: int, seed: int) -> np.ndarray:
    """Return unit vectors of which about a third are near another one."""
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((count // 3, dim))
    rows = centres[draw.integers(0, len(centres), count)] + 0.35 * draw.standard_normal((count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def by_brute_force(vectors: np.ndarray, k: int, threshold: float, neighbours: int) -> list[bool]:
    """Return the paper's rule, one text after the other: the top k of those kept, and how many pass the threshold."""
    kept = np.zeros((len(vectors), vectors.shape[1]), dtype=np.float32)
    count, verdicts = 0, []
    for vector in vectors:
        scores = kept[:count] @ vector
        best = np.sort(scores)[::-1][:k]
        verdicts.append(bool((best > threshold).sum() <= neighbours))
        if verdicts[-1]:
            kept[count] = vector
            count += 1
    return verdicts


def new_collection(client: QdrantClient, dim: int) -> Collection:
    collection = Collection(client, "index")
    QdrantIndex.create(collection, dim)
    return collection


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [2_000, pytest.param(8_000, marks=pytest.mark.slow)])
def test_it_equals_the_brute_force_rule(count: int) -> None:
    vectors = clustered(count, 24, seed=0)
    expected = by_brute_force(vectors, k=5, threshold=0.8, neighbours=1)
    client = QdrantClient(":memory:")
    rule, in_memory = Neighbourhood(0.8, 1, QdrantIndex(new_collection(client, 24), k=5)), Neighbourhood(0.8, 1)
    found, other = [], []
    for start in range(0, len(vectors), BATCH_ROWS):
        found += rule.decide(vectors[start : start + BATCH_ROWS])
        other += in_memory.decide(vectors[start : start + BATCH_ROWS])
    assert 0.2 < np.mean(expected) < 0.8
    assert found == expected == other
    client.close()


@pytest.mark.server
def test_the_graphs_of_a_server_keep_up_and_decide_alike(real_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose searches starve the building of its graphs would scan ever more rows."""
    for name, value in (("GRAPH_ROWS", 1_000), ("SEGMENT_ROWS", 8_000), ("WAIT_ROWS", 4_000)):
        monkeypatch.setattr(diversify, name, value)
    vectors = clustered(16_000, 48, seed=2)
    with open_client(url=real_url) as client:
        client.delete_collection("index")
        collection = new_collection(client, 48)
        index = QdrantIndex(collection, k=5)
        rule, in_memory, otherwise = Neighbourhood(0.8, 1, index), Neighbourhood(0.8, 1), 0
        for start in range(0, len(vectors), BATCH_ROWS):
            kept, batch = index.kept, vectors[start : start + BATCH_ROWS]
            otherwise += np.sum(np.array(rule.decide(batch)) != np.array(in_memory.decide(batch)))
            if kept // 4_000 < index.kept // 4_000:
                info = collection.info()
                assert info.status is models.CollectionStatus.GREEN
                assert info.indexed_vectors_count is not None
                assert info.indexed_vectors_count >= index.kept - 1_000 * info.segments_count
        assert index.kept > 8_000
        assert otherwise <= 16, "one text in a thousand"
        collection.drop()


@pytest.mark.parametrize(("k", "neighbours"), [(1, 0), (5, 1), (5, 3)])
def test_k_and_n_are_the_papers(k: int, neighbours: int) -> None:
    vectors = clustered(600, 12, seed=1)
    client = QdrantClient(":memory:")
    rule = Neighbourhood(0.75, neighbours, QdrantIndex(new_collection(client, 12), k=k))
    found = [verdict for start in range(0, 600, 100) for verdict in rule.decide(vectors[start : start + 100])]
    assert found == by_brute_force(vectors, k, 0.75, neighbours)
    assert not all(found)
    client.close()


class Model(ReadyEncoder):
    """Encodes both sides, and is interrupted in the middle of its work, after so many batches were written."""

    fingerprint = "of no file"

    def __init__(self, dim: int, batches: int | None = None) -> None:
        super().__init__(dim)
        self.left = batches

    def encode_document(self, texts: list[str]) -> np.ndarray:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self.encode(texts)

    encode_query = encode_document


@pytest.fixture
def source(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    texts = [f"头痛怎么办{number}" for number in draw.integers(0, 400, 1_500)]
    lines = [{"id": at, "text": text, "license": f"license {at % 3}"} for at, text in enumerate(texts)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")
    return tmp_path / "texts.jsonl"


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(each) for each in path.read_text(encoding="utf-8").splitlines()]


def test_a_killed_run_goes_on_and_rows_are_kept_whole(source: Path, tmp_path: Path) -> None:
    settings = Filter(side="document", threshold=0.2, seed_rows=50)
    with_kill, whole = tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"
    client = QdrantClient(":memory:")
    expected = diversify_file(source, whole, settings, Model(16), Collection(client, "one"))
    for batches in (1, 2, 1):
        with pytest.raises(KeyboardInterrupt):
            diversify_file(source, with_kill, settings, Model(16, batches), Collection(client, "two"))
        assert client.collection_exists("two")
    found = diversify_file(source, with_kill, settings, Model(16), Collection(client, "two"))
    assert lines(with_kill) == lines(whole)
    assert {**found, "file": ""} == {**expected, "file": ""}
    assert found["rows"] == 1_500 and found["distinct"] <= 400 and 50 <= found["kept"] < found["distinct"]
    rows = lines(source)
    assert all(row == rows[int(str(row["id"]))] for row in lines(whole))
    assert not client.get_collections().collections
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.jsonl", "texts.jsonl", "whole.jsonl"]
    client.close()


def test_what_cannot_be_is_refused(source: Path, tmp_path: Path) -> None:
    client = QdrantClient(":memory:")
    with pytest.raises(InputError, match="k = 1 neighbours cannot hold more than 1 similar"):
        diversify_file(
            source, tmp_path / "x", Filter(side="query", threshold=0.9, k=1), Model(4), Collection(client, "c")
        )
    new_collection(client, 4)
    settings = Filter(side="query", threshold=0.9)
    with pytest.raises(InputError, match="collection 'index' already exists"):
        diversify_file(source, tmp_path / "x", settings, Model(4), Collection(client, "index"))
    (tmp_path / "bad.jsonl").write_text('{"title": "t"}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"bad.jsonl:1: has no text under query, text, sentence1 \(keys: title\)"):
        diversify_file(tmp_path / "bad.jsonl", tmp_path / "x", settings, Model(4), Collection(client, "new"))
    client.close()
