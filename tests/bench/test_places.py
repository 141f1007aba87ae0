import threading
import tracemalloc
from pathlib import Path

import pytest
from care_benchmarks.places import Places
from care_benchmarks.taskfiles import find_tasks, read_questions

from tests.bench.conftest import write_jsonl


def test_an_id_keeps_its_first_place() -> None:
    places = Places()
    assert [places.add(identity, line) for identity, line in (("b", 1), ("a", 2), ("b", 3))] == [True, True, False]
    assert (places["b"], places["a"], len(places)) == (1, 2, 2)
    assert list(places) == ["b", "a"]
    assert "a" in places and "c" not in places
    with pytest.raises(KeyError, match="c"):
        places["c"]


def test_another_thread_may_collect_it() -> None:
    held = [Places()]
    held[0].add("a", 1)
    thread = threading.Thread(target=held.clear)  # an error in a finalizer is a warning, and fails this suite
    thread.start()
    thread.join()


def peak_of_reading(directory: Path, documents: int) -> int:
    write_jsonl(directory / "corpus.jsonl", [{"id": f"document-{n:08}", "text": "血糖"} for n in range(documents)])
    write_jsonl(directory / "queries.jsonl", [{"id": "q", "text": "血糖高"}])
    write_jsonl(directory / "qrels.jsonl", [{"query_id": "q", "document_id": "document-00000000", "score": 1}])
    files = find_tasks(directory).retrieval
    assert files
    tracemalloc.start()
    read_questions(files)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_checking_a_corpus_takes_no_memory_per_document(tmp_path: Path) -> None:
    """A set of ids alone would take 80 bytes more for each of 4,000 more documents."""
    small, large = (peak_of_reading(tmp_path / str(count), count) for count in (1_000, 5_000))
    assert large - small < 100_000
