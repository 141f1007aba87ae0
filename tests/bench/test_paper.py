"""The copied tables against the averages that the paper prints beside them: a slip in a copied digit shows here."""

import pytest
from care_benchmarks.paper import CMEDQA_1, CMEDQA_2, TABLES, Row, Table, rank_correlation

TABLE_3_AVERAGES = [67.81, 71.76, 73.04, 72.58, 76.44, 75.77, 75.54, 74.69, 75.36, 77.61, 75.49, 78.13, 78.94]
TABLE_4_AVERAGES = [61.90, 64.38, 65.21, 65.06, 65.63]
TABLE_4_SECOND_AVERAGES = [64.38, 65.63]
TABLE_9_AVERAGES = [
    (86.76, 60.57), (86.99, 59.22), (86.28, 50.49), (88.14, 60.31), (88.76, 58.23), (78.63, 49.49), (82.68, 51.37),
    (84.45, 57.75), (78.45, 54.16), (90.56, 58.78), (88.71, 60.39), (80.71, 60.12), (84.75, 64.43), (86.26, 64.52),
]  # fmt: skip


def mean(row: Row) -> float:
    return sum(row.figures.values()) / len(row.figures)


@pytest.mark.parametrize(("table", "averages"), [
    (TABLES[0], TABLE_3_AVERAGES), (TABLES[2], TABLE_4_AVERAGES), (TABLES[3], TABLE_4_SECOND_AVERAGES),
])  # fmt: skip
def test_rows_average_to_the_papers_own_column(table: Table, averages: list[float]) -> None:
    assert [mean(row) for row in table.rows] == pytest.approx(averages, abs=0.0101)


def test_zero_shot_rows_average_to_both_of_the_papers_columns() -> None:
    for row, (cmedqa, new) in zip(TABLES[4].rows, TABLE_9_AVERAGES, strict=True):
        old = [row.figures[CMEDQA_1], row.figures[CMEDQA_2]]
        assert sum(old) / 2 == pytest.approx(cmedqa, abs=0.0101)
        assert (sum(row.figures.values()) - sum(old)) / 3 == pytest.approx(new, abs=0.0101)


def test_the_papers_rank_correlation_follows_from_its_zero_shot_rows() -> None:
    found = rank_correlation(row.figures for row in TABLES[4].rows)
    assert found is not None and found.models == 14
    assert (round(found.rho, 3), round(found.p_value, 3)) == (0.354, 0.215), "table 2"
    assert rank_correlation(row.figures for row in TABLES[2].rows) is None, "two of the five tasks"


def test_what_is_quoted_of_table_3_did_not_change_between_the_versions() -> None:
    first = {row.model: row for row in TABLES[0].rows}
    assert len(TABLES[1].rows) == 5
    for row in TABLES[1].rows:
        assert row.figures.items() <= first[row.model].figures.items()
        assert row.parameters == first[row.model].parameters
