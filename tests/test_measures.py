"""Measures of a ranking against an independent reference: ir_measures, which the benchmark harness uses."""

import ir_measures
import pytest
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.measures import ndcg_at_10, recall_at_10, reciprocal_rank_at_10

RANKINGS = st.lists(
    st.tuples(
        st.permutations([f"d{number}" for number in range(30)]).flatmap(
            lambda ids: st.integers(0, 30).map(lambda count: ids[:count])
        ),
        st.sets(st.integers(0, 40).map(lambda number: f"d{number}"), min_size=1),
    ),
    min_size=1,
    max_size=4,
)


@given(RANKINGS)
def test_each_query_has_the_value_of_ir_measures(queries: list[tuple[list[str], set[str]]]) -> None:
    found, relevant = [best for best, _ in queries], [ids for _, ids in queries]
    qrels = {str(at): dict.fromkeys(ids, 1) for at, ids in enumerate(relevant)}
    run = {str(at): {name: float(-rank) for rank, name in enumerate(best)} for at, best in enumerate(found) if best}
    ours = {"nDCG@10": ndcg_at_10, "R@10": recall_at_10, "RR@10": reciprocal_rank_at_10}
    for name, measure in ours.items():
        values = dict.fromkeys(qrels, 0.0)
        if run:
            calculated = ir_measures.iter_calc([ir_measures.parse_measure(name)], qrels, run)
            values |= {metric.query_id: metric.value for metric in calculated}
        assert measure(found, relevant) == pytest.approx([values[str(at)] for at in range(len(queries))]), name
