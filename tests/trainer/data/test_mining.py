import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from care_trainer.cli import care_train
from care_trainer.data.mining import MiningRule, mine_pairs, similarity
from care_trainer.data.read import Pair
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.errors import InputError
from care_qdrant.ingestion.ingest import IngestSettings, ingest
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document, Hit
from tests.tiny import HashModel
from tests.trainer.tiny_run import pairs as tiny_pairs
from tests.trainer.tiny_run import write_jsonl


def _hits(*scored: tuple[str, float]) -> list[Hit]:
    return [Hit(document_id=text, point_id=text, score=score, text=text) for text, score in scored]


def _mine(pair: Pair, hits: list[Hit], rule: MiningRule, score: float | None = None) -> tuple[str, ...]:
    def search(queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        assert list(queries) == [pair.query] and top_k == rule.last_rank
        return [hits[:top_k]]

    scores = None if score is None else lambda batch: np.array([score], dtype=np.float32)
    (found,) = mine_pairs([pair], search, rule, scores)
    assert (found.query, found.positive) == (pair.query, pair.positive)
    return found.negatives


PAIR = Pair("q", "p")
HITS = _hits(("a", 0.9), ("p", 0.8), ("b", 0.79), ("c", 0.7), ("q", 0.6), ("d", 0.5), ("d", 0.5), ("e", 0.4))


def test_ranks_count_from_one_and_the_answer_is_never_a_negative() -> None:
    rule = MiningRule(negatives=9, first_rank=2, last_rank=8, relative_margin=None)
    assert _mine(PAIR, HITS, rule) == ("b", "c", "d", "e")
    assert _mine(PAIR, HITS, MiningRule(2, 2, 4, None)) == ("b", "c")


def test_the_margin_is_relative_to_the_positive() -> None:
    assert _mine(PAIR, HITS, MiningRule(9, 1, 8, 0.1), score=0.8) == ("c", "d", "e")


@given(
    st.lists(st.floats(-1, 1, width=32), max_size=12, unique=True),
    st.floats(-1, 1, width=32),
    st.one_of(st.none(), st.floats(0, 1)),
)
def test_no_negative_scores_above_the_positive_less_the_margin_whatever_the_signs(
    scores: list[float], positive: float, margin: float | None
) -> None:
    hits = _hits(*((f"d{at}", score) for at, score in enumerate(sorted(scores, reverse=True))))
    most = math.inf if margin is None else positive - margin * abs(positive)
    expected = tuple(hit.text for hit in hits if hit.score <= most)
    assert _mine(PAIR, hits, MiningRule(12, 1, 12, margin), score=positive) == expected
    assert _mine(PAIR, hits, MiningRule(12, 1, 12, margin)) == tuple(hit.text for hit in hits)  # BM25 has no score


def test_the_answer_is_no_negative_as_a_chunk_below_a_title_or_inside_a_longer_document() -> None:
    answer = "糖尿病人可以少量吃西瓜，\n但要监测血糖。"
    texts = ["但要监测血糖。", answer.replace("\n", " "), f"问答汇编。{answer}另见饮食一章。", "西瓜含水量高。"]
    hits = [Hit(document_id=text, point_id=text, score=0.5, text=text, title="饮食") for text in texts]
    assert _mine(Pair("q", answer), hits, MiningRule(9, 1, 9, None)) == ("饮食 西瓜含水量高。",)


def test_negatives_of_a_pair_stay_in_front_of_those_that_are_mined() -> None:
    pair = Pair("q", "p", ("own", "c"))
    assert _mine(pair, HITS, MiningRule(2, 3, 8, None)) == ("own", "c", "b")


def test_other_answers_to_the_same_question_are_no_negatives_and_no_pair_is_dropped() -> None:
    two = [Pair("q", "p"), Pair("q", "b")]
    found = list(mine_pairs(two, lambda queries, top_k: [HITS[:4]] * len(queries), MiningRule(9, 1, 4, None), None))
    assert [pair.negatives for pair in found] == [("a", "c"), ("a", "c")]
    nothing = list(mine_pairs(two, lambda queries, top_k: [[]] * len(queries), MiningRule(9, 1, 4, None), None))
    assert [pair.negatives for pair in nothing] == [(), ()]


def test_ranks_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="1 <= first <= last"):
        MiningRule(first_rank=5, last_rank=4)


def test_a_collection_gives_what_its_own_search_finds(tmp_path: Path) -> None:
    rows, model = tiny_pairs()[:12], HashModel()
    with open_client(path=tmp_path / "qdrant") as client:
        ingest([Document(str(at), row["positive"]) for at, row in enumerate(rows)], model, client, "corpus")
        search = Retriever(client, "corpus", model).search
        pairs = [Pair(row["query"], row["positive"]) for row in rows]
        found = list(mine_pairs(pairs, search, MiningRule(3, 1, 12, None), similarity(model)))  # type: ignore[arg-type]
        for pair, hits in zip(pairs, search([pair.query for pair in pairs], 12), strict=True):
            expected = [hit.text for hit in hits if hit.text != pair.positive][:3]
            assert next(row.negatives for row in found if row.query == pair.query) == tuple(expected)


def test_the_command_writes_pairs_that_training_reads(tmp_path: Path) -> None:
    rows = tiny_pairs()[:8]
    write_jsonl(tmp_path / "pairs.jsonl", ({key: row[key] for key in ("query", "positive")} for row in rows))
    documents = [Document(str(at), row["positive"]) for at, row in enumerate(rows)]
    with open_client(path=tmp_path / "qdrant") as client:
        ingest(documents, HashModel(), client, "corpus", settings=IngestSettings(sparse=True))
    source, output, database = (str(tmp_path / name) for name in ("pairs.jsonl", "mined.jsonl", "qdrant"))
    arguments = ["mine", source, "--collection", "corpus", "--output", output, "--path", database]
    options = ["--mode", "sparse", "--ranks", "1", "8"]
    result = CliRunner().invoke(care_train, [*arguments, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    mined = [json.loads(line) for line in (tmp_path / "mined.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["query"] for row in mined] == [row["query"] for row in rows]
    assert any(row["negatives"] for row in mined)
    assert all(row["positive"] not in row["negatives"] for row in mined)
