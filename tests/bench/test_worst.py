from care_benchmarks.results import Answer, PerQuery
from care_benchmarks.run import ANSWERS, LONGEST_TEXT, QUERIES_PER_TASK, worst_queries


def test_worst_first_with_what_was_given_and_what_was_wanted() -> None:
    qrels = {"good": {"a": 1}, "bad": {"b": 1, "c": 2, "a": 0}, "silent": {"a": 1}}
    run = {"good": {"a": 0.9}, "bad": {"a": 0.8, "x": 0.7}}
    entry = PerQuery("system", "task", ["good", "bad", "silent"], {"nDCG@10": [1.0, 0.2, 0.0]})
    documents = {"a": "甲", "b": "乙", "c": "丙", "x": "长" * 1000}
    found = worst_queries(entry, "nDCG@10", run, qrels, {"good": "好", "bad": "坏", "silent": "静"}, documents)
    assert [(query.text, query.score) for query in found] == [("静", 0.0), ("坏", 0.2), ("好", 1.0)]
    silent, bad, _ = found
    assert (silent.answers, silent.wanted) == ([], ["甲"])
    assert bad.wanted == ["丙", "乙"]
    assert bad.answers[0] == Answer(1, "a", 0.8, 0, "甲")
    assert (bad.answers[1].grade, len(bad.answers[1].text)) == (None, LONGEST_TEXT)


def test_lists_are_short() -> None:
    queries = [f"q{number}" for number in range(50)]
    entry = PerQuery("system", "task", queries, {"AP@10": [0.0] * 50})
    run = {query: {f"d{number}": 1.0 / (number + 1) for number in range(50)} for query in queries}
    documents = {f"d{number}": "文" for number in range(50)}
    found = worst_queries(
        entry, "AP@10", run, {query: {"d49": 1} for query in queries}, dict.fromkeys(queries, "问"), documents
    )
    assert len(found) == QUERIES_PER_TASK
    assert {len(query.answers) for query in found} == {ANSWERS}
