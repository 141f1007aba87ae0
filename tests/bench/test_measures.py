"""Our scores per query against trec_eval (pytrec_eval), mteb's own scoring, SciPy, and the textbook in plain Python."""

import math
import re

import numpy as np
import pytest
import pytrec_eval
from care_benchmarks.measures import CONDENSED, RANKING_MEASURES, Qrels, pearson_shares, per_query, spearman
from mteb._evaluators.retrieval_metrics import calculate_retrieval_scores
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


def textbook_ap(grades: dict[str, int], answers: dict[str, float], depth: int | None) -> float:
    found, total = 0, 0.0
    for rank, name in enumerate(ranking(answers)[:depth], start=1):
        if grades.get(name, 0) > 0:
            found += 1
            total += found / rank
    return total / sum(grade > 0 for grade in grades.values())


@pytest.mark.parametrize("seed", range(8))
def test_scores_equal_trec_eval_and_the_textbook(seed: int) -> None:
    qrels, run = random_case(seed)
    ours = per_query(qrels, run)
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "map_cut.10,100", "recall.100"}).evaluate(run)
    for query, grades in qrels.items():
        for name, trec_name in TREC_NAMES.items():
            expected = theirs[query][trec_name] if run.get(query) else 0.0
            assert ours[name][query] == pytest.approx(expected, abs=1e-12)
        answers = run.get(query, {})
        assert ours["nDCG@10"][query] == pytest.approx(textbook_ndcg_at_10(grades, answers), abs=1e-9)
        assert ours["AP@10"][query] == pytest.approx(textbook_ap(grades, answers, 10), abs=1e-9)
        assert ours["AP@100"][query] == pytest.approx(textbook_ap(grades, answers, 100), abs=1e-9)


def test_means_equal_mteb_where_every_query_is_answered() -> None:
    qrels, run = random_case(3)
    answered = {query: run[query] for query in qrels if run.get(query)}
    judged = {query: qrels[query] for query in answered}
    result = calculate_retrieval_scores(answered, judged, [10, 100], skip_first_result=False)
    ours = per_query(judged, answered)
    assert np.mean(list(ours["nDCG@10"].values())) == pytest.approx(result.ndcg["NDCG@10"], abs=1e-5)
    assert np.mean(list(ours["AP@10"].values())) == pytest.approx(result.map["MAP@10"], abs=1e-5)
    assert np.mean(list(ours["R@100"].values())) == pytest.approx(result.recall["Recall@100"], abs=1e-5)


def test_a_silent_query_scores_zero_and_counts() -> None:
    """mteb's mean over answered queries would be 1.0 here."""
    scores = per_query({"q1": {"d": 1}, "q2": {"d": 1}, "q3": {"d": 1}}, {"q1": {"d": 0.5}, "q2": {}})
    assert scores["nDCG@10"] == {"q1": 1.0, "q2": 0.0, "q3": 0.0}


def test_average_precision_at_10_divides_by_all_relevant_documents() -> None:
    qrels = {"q": {f"d{number}": 1 for number in range(15)}}
    run = {"q": {f"d{number}": 1.0 - number / 100 for number in range(10)}}
    assert per_query(qrels, run)["AP@10"]["q"] == pytest.approx(10 / 15)


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
    """Of equal scores the greater document id comes first, as in trec_eval."""
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
