from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from care_trainer.config import Data, Diversify
from care_trainer.data.diversity import Neighbourhood, diverse_pairs
from care_trainer.data.read import Pair, iter_pairs
from care_trainer.data.table import pair_rows

from care_qdrant.errors import ModelError
from tests.tiny import care_folder
from tests.trainer.tiny_run import write_jsonl


def _unit(*angles: float) -> np.ndarray:
    radians = np.radians(angles)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def test_a_text_with_too_many_neighbours_is_left_out_in_one_batch_or_in_many() -> None:
    angles = (0.0, 5.0, 10.0, 90.0, 3.0, 95.0)
    expected = [True, True, False, True, False, True]
    together = Neighbourhood(threshold=0.9, neighbours=1)
    assert together.add([str(at) for at in range(6)], _unit(*angles)) == expected
    apart = Neighbourhood(threshold=0.9, neighbours=1)
    assert [apart.add([str(at)], _unit(angle))[0] for at, angle in enumerate(angles)] == expected


def test_the_same_text_gets_the_same_verdict_and_is_no_neighbour_of_itself() -> None:
    strict = Neighbourhood(threshold=0.9, neighbours=0)
    assert strict.add(["a", "b", "a"], _unit(0, 5, 0)) == [True, False, True]
    assert strict.add(["b", "a"], _unit(5, 0)) == [False, True]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return care_folder(tmp_path_factory.mktemp("encoder") / "pair")


def _data(root: Path, encoder: Path, **settings: Any) -> Data:
    """Return pairs: ten that differ, five whose query was there with a comma, five whose document was."""
    questions = [
        "高血压饮食",
        "哮喘",
        "EGFR 靶向药",
        "二甲双胍",
        "发烧三天",
        "阑尾炎",
        "心肌梗死",
        "甲亢",
        "消炎药",
        "6.5%",
    ]
    answers = [f"{mark * 3}{question}" for mark, question in zip("甲心急糖孩拨腹肺药注", questions, strict=True)]
    rows = [{"query": query, "positive": answer} for query, answer in zip(questions, answers, strict=True)]
    rows += [{"query": f"{questions[at]}，", "positive": f"新的回答{at}{answers[at][::-1]}"} for at in range(5)]
    rows += [{"query": f"另一个问题{at}{questions[at][::-1]}", "positive": f"{answers[at]}，"} for at in range(5, 10)]
    write_jsonl(root / "pairs.jsonl", rows)
    return Data(files=("pairs.jsonl",), diversify=Diversify(encoder=str(encoder), neighbours=0, **settings))


def test_sides_are_looked_at_on_their_own_and_all_settings_keep_as_many_pairs(encoder: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model, everything = SentenceTransformer(str(encoder)), list(iter_pairs(_data(tmp_path, encoder), tmp_path))
    thresholds = {}
    for side, encode in (("query", model.encode_query), ("document", model.encode_document)):
        vectors = encode([pair.query if side == "query" else pair.positive for pair in everything])
        cosine = (vectors @ vectors.T)[np.tril_indices(len(vectors), -1)]
        thresholds[f"{side}_threshold"] = float(np.quantile(cosine, 0.9))
    found = {}
    for sides in ("both", "query", "none"):
        found[sides] = list(diverse_pairs(_data(tmp_path, encoder, sides=sides, **thresholds), tmp_path))
    assert 3 < len(found["both"]) < 20
    assert {len(pairs) for pairs in found.values()} == {len(found["both"])}
    assert len({tuple(pairs) for pairs in found.values()}) == 3


def test_what_is_left_out_is_similar_and_what_is_kept_is_not(encoder: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    data = _data(tmp_path, encoder, query_threshold=0.7, document_threshold=2.0)
    kept = [pair.query for pair in diverse_pairs(data, tmp_path)]
    model = SentenceTransformer(str(encoder))
    cosine = model.encode_query(kept) @ model.encode_query(kept).T
    assert (cosine[np.tril_indices(len(kept), -1)] <= 0.7 + 1e-5).all()
    everything = [pair.query for pair in diverse_pairs(Data(files=data.files), tmp_path)]
    for query in set(everything) - set(kept):
        before = [other for other in kept if everything.index(other) < everything.index(query)]
        assert (model.encode_query([query]) @ model.encode_query(before).T).max() > 0.7 - 1e-5


def test_rows_of_a_run_are_diverse(encoder: Path, tmp_path: Path) -> None:
    data = _data(tmp_path, encoder, query_threshold=0.7, document_threshold=0.7)
    rows = pair_rows(data, tmp_path, tmp_path / "rows").columns
    expected = Counter(diverse_pairs(data, tmp_path))
    assert Counter(Pair(row["query"], row["positive"], source=row["source"]) for row in rows) == expected
    assert len(rows) < 20


def test_an_encoder_that_is_not_there_is_named(tmp_path: Path) -> None:
    data = _data(tmp_path, tmp_path / "none")
    with pytest.raises(ModelError, match="there is no such folder"):
        list(diverse_pairs(data, tmp_path))
