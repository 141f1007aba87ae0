"""The paper's own numbers, each with the version that prints it, since the versions disagree.

The figures of the first version are copied from its tables, where the pairs are still called MAR. Of the second one
only a summary by others was at hand, so its rows are second-hand and few, under the numbers of the first one's tables.
Nothing here was measured by this project.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from care_benchmarks.results import Result

FIRST_VERSION = "first version (submission “MAR: Medical Asymmetric Retriever”: its MAR is CARE here), reranking as MAP"
SECOND_VERSION = "second version (arXiv 2604.10937v2, ACL 2026), quoted from a summary by others, reranking as MAP@10"

CMEDQA_1, CMEDQA_2 = "CMedQAv1-reranking", "CMedQAv2-reranking"
RETRIEVAL, RERANK, STS = "CMedTEB-Retrieval", "CMedTEB-Rerank", "CMedTEB-STS-qd"
_NEEDS_CMEDTEB = "the CMedTEB test sets"
_NEEDS_CMEDQA = "the CMedQA test sets from the hub"


@dataclass(frozen=True, slots=True)
class Row:
    """One model of one table."""

    model: str
    parameters: str
    """Of the query and the document encoder, as printed."""
    figures: Mapping[str, float]
    """In percent, by mteb task; averages are left out: they follow."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of one version of the paper."""

    title: str
    source: str
    tasks: tuple[str, ...]
    rows: tuple[Row, ...] = field(repr=False)


def _rows(tasks: tuple[str, ...], lines: str) -> tuple[Row, ...]:
    """Read ``model | parameters | figures …`` lines."""

    def parse() -> Iterator[Row]:
        for line in lines.strip().splitlines():
            model, parameters, *figures = (cell.strip() for cell in line.split("|"))
            yield Row(model, parameters, dict(zip(tasks, map(float, figures), strict=True)))

    return tuple(parse())


_FINE_TUNED = (CMEDQA_1, CMEDQA_2, RETRIEVAL, RERANK, STS)
_QUOTED = (RETRIEVAL, RERANK, STS)
_SYMMETRY = (RETRIEVAL, RERANK)
_ZERO_SHOT = (CMEDQA_1, CMEDQA_2, RETRIEVAL, RERANK, STS)

TABLES = (
    Table(
        "Table 3: fine-tuned on the paper's training data",
        FIRST_VERSION,
        _FINE_TUNED,
        _rows(
            _FINE_TUNED,
            """
            bge-small-zh-v1.5       | 24M / 24M     | 80.21 | 81.69 | 44.33 | 62.30 | 70.50
            bge-base-zh-v1.5        | 102M / 102M   | 83.37 | 83.31 | 49.16 | 66.73 | 76.24
            bge-large-zh-v1.5       | 326M / 326M   | 83.23 | 85.15 | 50.32 | 67.55 | 78.95
            bge-m3                  | 568M / 568M   | 82.98 | 83.32 | 51.35 | 66.90 | 78.34
            Conan-embedding-v1      | 326M / 326M   | 89.89 | 88.77 | 52.75 | 69.31 | 81.49
            stella-base-zh-v3-1792d | 102M / 102M   | 87.16 | 88.28 | 53.31 | 69.56 | 80.52
            gte-multilingual-base   | 305M / 305M   | 86.21 | 86.37 | 53.37 | 69.38 | 82.36
            gte-base-zh             | 102M / 102M   | 85.31 | 86.44 | 52.62 | 69.35 | 79.73
            gte-large-zh            | 326M / 326M   | 85.44 | 86.97 | 52.93 | 69.97 | 81.48
            gte-Qwen2-1.5B-instruct | 1.78B / 1.78B | 87.68 | 87.15 | 55.39 | 72.35 | 85.50
            Qwen3-Embedding-0.6B    | 596M / 596M   | 85.58 | 86.09 | 54.42 | 70.94 | 80.42
            CARE-0.3B-4B            | 305M / 4.02B  | 86.04 | 87.31 | 55.91 | 72.84 | 88.53
            CARE-0.3B-8B            | 305M / 8.19B  | 88.34 | 88.86 | 56.75 | 73.67 | 87.07
            """,
        ),
    ),
    Table(
        "Table 3: fine-tuned on the paper's training data, the rows that are quoted",
        SECOND_VERSION,
        _QUOTED,
        _rows(
            _QUOTED,
            """
            bge-large-zh-v1.5       | 326M / 326M   | 50.32 | 67.55 | 78.95
            Conan-embedding-v1      | 326M / 326M   | 52.75 | 69.31 | 81.49
            gte-Qwen2-1.5B-instruct | 1.78B / 1.78B | 55.39 | 72.35 | 85.50
            CARE-0.3B-4B            | 305M / 4.02B  | 55.91 | 72.84 | 88.53
            CARE-0.3B-8B            | 305M / 8.19B  | 56.75 | 73.67 | 87.07
            """,
        ),
    ),
    Table(
        "Table 4: asymmetric against symmetric",
        FIRST_VERSION,
        _SYMMETRY,
        _rows(
            _SYMMETRY,
            """
            Medical-Embedder-base                         | 305M / 305M   | 54.16 | 69.63
            Medical-Embedder-base + Medical-Embedder-4B   | 305M / 4.02B  | 55.91 | 72.84
            Medical-Embedder-base + Medical-Embedder-8B   | 305M / 8.19B  | 56.75 | 73.67
            Medical-Embedder-4B                           | 4.02B / 4.02B | 56.85 | 73.26
            Medical-Embedder-8B                           | 8.19B / 8.19B | 57.79 | 73.47
            """,
        ),
    ),
    Table(
        "Table 4: asymmetric against symmetric, the rows that are quoted",
        SECOND_VERSION,
        _SYMMETRY,
        _rows(
            _SYMMETRY,
            """
            CARE-0.3B-4B        | 305M / 4.02B  | 55.91 | 72.84
            Med-Emb-8B          | 8.19B / 8.19B | 56.42 | 74.84
            """,
        ),
    ),
    Table(
        "Table 9: zero-shot",
        FIRST_VERSION,
        _ZERO_SHOT,
        _rows(
            _ZERO_SHOT,
            """
            gte-multilingual-base   | 305M  | 86.11 | 87.40 | 47.80 | 61.51 | 72.39
            gte-base-zh             | 102M  | 86.79 | 87.20 | 44.18 | 58.40 | 75.07
            gte-large-zh            | 326M  | 86.09 | 86.46 | 29.75 | 53.70 | 68.02
            gte-Qwen2-1.5B-instruct | 1.78B | 88.16 | 88.12 | 45.14 | 58.99 | 76.81
            gte-Qwen2-7B-instruct   | 7.61B | 88.20 | 89.31 | 40.94 | 61.07 | 72.67
            bge-small-zh-v1.5       | 24M   | 77.40 | 79.86 | 35.22 | 55.39 | 57.87
            bge-base-zh-v1.5        | 102M  | 80.47 | 84.88 | 33.11 | 53.56 | 67.45
            bge-large-zh-v1.5       | 326M  | 83.45 | 85.44 | 43.05 | 58.31 | 71.90
            bge-m3                  | 568M  | 77.71 | 79.19 | 41.14 | 57.68 | 63.67
            Conan-embedding-v1      | 326M  | 91.39 | 89.72 | 41.60 | 61.89 | 72.86
            stella-base-zh-v3-1792d | 102M  | 88.35 | 89.06 | 45.77 | 60.43 | 74.96
            Qwen3-Embedding-0.6B    | 596M  | 80.06 | 81.35 | 47.54 | 64.51 | 68.31
            Qwen3-Embedding-4B      | 4.02B | 84.43 | 85.06 | 50.14 | 66.67 | 76.49
            Qwen3-Embedding-8B      | 7.57B | 86.13 | 86.39 | 51.15 | 66.31 | 76.09
            """,
        ),
    ),
)


def reproduced_here(row: Row, result: Result) -> str:
    """Say what a run has of a row: its own figures in percent, or what it would need."""
    system = next((system for system in result.systems if system.name.casefold() == row.model.casefold()), None)
    own = {task: score.value for task in row.figures if system and (score := system.score(task))}
    if own:
        return "reproduced here: " + ", ".join(f"{task} {100 * value:.2f}" for task, value in own.items())
    needs = [] if system else [f"the weights of {row.model}"]
    missing = set(row.figures) - {task.name for task in result.tasks}
    needs += [_NEEDS_CMEDTEB] if missing & {RETRIEVAL, RERANK, STS} else []
    needs += [_NEEDS_CMEDQA] if missing & {CMEDQA_1, CMEDQA_2} else []
    return f"not run here (needs {', '.join(needs)})"
