"""Our scores per query against trec_eval (pytrec_eval), SciPy, and the textbook in plain Python."""

import math
import re

import numpy as np
import pytest
import pytrec_eval
from care_benchmarks.measures import CONDENSED, RANKING_MEASURES, Qrels, pearson_shares, per_query, spearman
from scipy import stats

Run = dict[str, dict[str, float]]
TREC_NAMES = {"nDCG@10": "ndcg_cut_10", "AP@10": "map_cut_10", "AP@100": "map_cut_100", "R@100": "recall_100"}


def random_case(seed: int) -> tuple[Qrels, Run]:
    """Grades 0–3, up to 18 relevant documents, scores from few values (many ties), a quarter of the queries silent."""
    rng = np.random.default_rng(seed)
    documents = [f"d{number}" for number in range(60)]
    qrels: Qrels = {}
    run: Run = {}
    for number in range(20):
        judged = rng.choice(documents, size=rng.integers(1, 25), replace=False)
        qrels[f"q{number}"] = {str(name): int(rng.integers(0, 4)) for name in judged} | {str(judged[0]): 1}
        answered = rng.choice(documents, size=rng.integers(1, 50), replace=False)
        if rng.random() < 0.75:
            run[f"q{number}"] = {str(name): float(rng.integers(0, 5)) / 4 for name in answered}
        elif rng.random() < 0.5:
            run[f"q{number}"] = {}
    return qrels, run


def ranking(answers: dict[str, float]) -> list[str]:
    return sorted(answers, key=lambda name: (answers[name], name), reverse=True)


def textbook_ndcg_at_10(grades: dict[str, int], answers: dict[str, float]) -> float:
    gains = [grades.get(name, 0) for name in ranking(answers)[:10]]
    ideal = sorted(grades.values(), reverse=True)[:10]
    return sum(g / math.log2(r + 2) for r, g in enumerate(gains)) / sum(
        g / math.log2(r + 2) for r, g in enumerate(ideal)
    )


@pytest.mark.parametrize("seed", range(8))
def test_scores_equal_trec_eval_and_a_silent_query_scores_zero(seed: int) -> None:
    qrels, run = random_case(seed)
    ours = per_query(qrels, run)
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "map_cut.10,100", "recall.100"}).evaluate(run)
    for query in qrels:
        for name, trec_name in TREC_NAMES.items():
            expected = theirs[query][trec_name] if run.get(query) else 0.0
            assert ours[name][query] == pytest.approx(expected, abs=1e-12)


def test_average_precision_does_not_depend_on_how_much_was_retrieved() -> None:
    """Tasks of mteb retrieve 1,000 documents and local ones 100; the label states the depth of both."""
    qrels = {"q": {"d5": 1, "d150": 1}}
    long = {f"d{number}": 1.0 - number / 1_000 for number in range(200)}
    short = dict(list(long.items())[:100])
    first, second = (per_query(qrels, {"q": run}) for run in (long, short))
    assert first == second
    assert first["AP@100"]["q"] == pytest.approx(1 / 6 / 2)


def test_every_ranking_measure_names_its_depth() -> None:
    assert all(re.fullmatch(r"[A-Za-z]+@\d+", name) for name in RANKING_MEASURES)


def test_an_answer_to_a_question_that_nobody_asked_is_ignored() -> None:
    assert per_query({"q": {"d": 1}}, {"q": {"d": 1.0}, "stray": {"d": 1.0}})["AP@100"] == {"q": 1.0}


@pytest.mark.parametrize("seed", range(4))
def test_pearson_shares_average_to_pearson(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, size=200).astype(float)
    similarities = labels * 0.3 + rng.normal(size=200)
    assert pearson_shares(labels, similarities).mean() == pytest.approx(
        stats.pearsonr(labels, similarities).statistic, abs=1e-12
    )
    assert spearman(labels, similarities) == pytest.approx(stats.spearmanr(labels, similarities).statistic)


def test_a_constant_similarity_correlates_with_nothing() -> None:
    assert pearson_shares([0, 1, 1], [0.5, 0.5, 0.5]).tolist() == [0, 0, 0]


def test_every_measure_breaks_ties_in_the_same_way() -> None:
    """The greater document id comes first among equal scores, which is trec_eval's rule."""
    run = {"q": {"a": 1.0, "b": 1.0, "c": 0.5}}
    first, second = (per_query({"q": {relevant: 1}}, run) for relevant in ("b", "a"))
    assert {name: first[name]["q"] for name in ("RR@10", "AP@10")} == {"RR@10": 1.0, "AP@10": 1.0}
    assert {name: second[name]["q"] for name in ("RR@10", "AP@10")} == {"RR@10": 0.5, "AP@10": 0.5}


def test_the_rank_correlation_of_a_constant_is_zero() -> None:
    assert spearman([1.0, 2.0, 3.0], [0.5, 0.5, 0.5]) == 0.0
    assert spearman([1.0, 1.0, 1.0], [0.1, 0.5, 0.3]) == 0.0


@pytest.mark.parametrize("seed", range(10))
def test_condensed_ndcg_is_ndcg_of_the_judged_documents_alone(seed: int) -> None:
    qrels, run = random_case(seed)
    found = per_query(qrels, run)
    for query, grades in qrels.items():
        answers = run.get(query, {})
        known = {name: score for name, score in answers.items() if name in grades}
        assert found[CONDENSED][query] == pytest.approx(textbook_ndcg_at_10(grades, known), abs=1e-9)
        top = ranking(answers)[:10]
        assert found["Judged@10"][query] == pytest.approx(sum(name in grades for name in top) / max(1, len(top)))
