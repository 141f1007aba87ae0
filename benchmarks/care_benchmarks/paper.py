"""The paper's own figures (``paper.toml``), each with the version that prints it, since the versions disagree.

The figures of version 1 are copied from its tables, where the pairs are still called MAR. Of version 2 only a summary
by others was available. Averages are left out: they follow. Nothing was measured by this project.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scipy import stats

CMEDQA_1, CMEDQA_2 = "CMedQAv1-reranking", "CMedQAv2-reranking"
RETRIEVAL, RERANK, STS = "CMedTEB-Retrieval", "CMedTEB-Rerank", "CMedTEB-STS-qd"


NEW_TASKS = (RETRIEVAL, RERANK, STS)
_FEWEST_MODELS = 4


@dataclass(frozen=True, slots=True)
class RankCorrelation:
    """Agreement of the new tasks with the public ones in how they rank models (table 2)."""

    models: int
    rho: float
    """Spearman's, from -1 to 1."""
    p_value: float


def rank_correlation(figures: Iterable[Mapping[str, float]]) -> RankCorrelation | None:
    """Correlate averages on both CMedQA sets and on the three new tasks; None below four models with all five."""
    groups = (CMEDQA_1, CMEDQA_2), NEW_TASKS
    whole = [own for own in figures if all(task in own for group in groups for task in group)]
    if len(whole) < _FEWEST_MODELS:
        return None
    averages = [[sum(own[task] for task in group) / len(group) for own in whole] for group in groups]
    found = stats.spearmanr(*averages)
    return RankCorrelation(len(whole), float(found.statistic), float(found.pvalue))


@dataclass(frozen=True, slots=True)
class Row:
    """One model of one table."""

    model: str
    parameters: str
    """Parameters of the query and the document encoder, as printed."""
    figures: Mapping[str, float]
    """Percentages by mteb task."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of one version of the paper."""

    title: str
    source: str
    """Version of the paper, and the reranking measure that it names."""
    tasks: tuple[str, ...]
    rows: tuple[Row, ...]


def _tables() -> tuple[Table, ...]:
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(
        Table(
            table["title"],
            table["source"],
            tuple(table["tasks"]),
            tuple(Row(row[0], row[1], dict(zip(table["tasks"], row[2:], strict=True))) for row in table["rows"]),
        )
        for table in content["table"]
    )


TABLES = _tables()
