"""A test of whether a good-match score (`care_qdrant.search.good_match`) tells queries of its field from others.

Shares of queries whose best hit is no good match: of the judged queries of each task (false alarms), and of queries
of other subjects in Chinese and English (which should all be below).
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from care_benchmarks.taskfiles import read_corpus
from qdrant_client import QdrantClient

from benchmarks.perf.measured import output_option, save_measured
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.search.good_match import fixed_questions, judge, measure_good_match
from care_qdrant.search.retriever import Retriever

ELSEWHERE = {
    "chinese": (
        "二手房过户需要交哪些税", "怎么给手机换电池", "北京到上海高铁多久", "劳动合同到期不续签有补偿吗",
        "推荐几部好看的科幻电影", "红烧肉怎么做好吃", "如何写求职简历", "汽车轮胎多久换一次", "股票亏损了怎么办",
        "人工智能会取代程序员吗", "小学三年级数学题怎么辅导", "空调不制冷是什么原因", "租房押金不退怎么办",
        "世界杯在哪里看直播", "护照丢了怎么补办", "怎么学弹吉他",
    ),
    "english": (
        "how do I renew my passport", "weather in Oslo tomorrow", "best pizza in town", "python list comprehension",
        "who won the football game", "how to change a tyre", "cheap flights to Rome", "what is a mortgage",
        "what does the chest pain of a heart attack feel like", "can people with diabetes eat fruit",
    ),
}  # fmt: skip
QUERIES = 200


@dataclass(frozen=True, slots=True)
class Row:
    """One way to search one task; shares in [0, 1]."""

    task: str
    mode: str
    floor: float | None
    own_below: float
    chinese_below: float
    english_below: float
    queries: int


def measure(task: str, corpus: Path, questions: list[str], model: CareModel) -> list[Row]:
    """Return the shares for a dense and a hybrid search."""
    client = QdrantClient(":memory:")
    ingest(corpus, model, client, task, settings=IngestSettings(sparse=True))
    rows = []
    for mode in ("dense", "hybrid"):
        retriever = Retriever(client, task, model, mode=mode)  # type: ignore[arg-type]
        least = measure_good_match(retriever, fixed_questions(retriever))

        def below(queries: list[str]) -> float:
            hits = retriever.search(queries, 1)  # noqa: B023  # called at once
            matches = [judge(found, least, model.unread(query)) for query, found in zip(queries, hits, strict=True)]  # noqa: B023
            return float(np.mean([match.is_good is False for match in matches]))

        shares = [below(list(queries)) for queries in (questions[:QUERIES], *ELSEWHERE.values())]
        rows.append(Row(task, mode, least and least.score, *shares, len(questions[:QUERIES])))
    return rows


@click.command()
@click.argument("tasks", type=click.Path(path_type=Path, exists=True), nargs=-1, required=True)
@output_option
def main(tasks: tuple[Path, ...], output: Path) -> None:
    """Measure the built-in pair on the retrieval task of each folder.

    \b
    Example:
      python -m benchmarks.experiments.good_match examples/sample --output good-match.json
    """
    model = CareModel.load()
    rows = []
    for folder in tasks:
        corpus = next(path for path in sorted(folder.iterdir()) if path.name.startswith("corpus.jsonl"))
        queries = next(path for path in sorted(folder.iterdir()) if path.name.startswith("queries.jsonl"))
        rows += measure(folder.name, corpus, [question.text for question in read_corpus(queries)], model)
        for row in rows[-2:]:
            click.echo(asdict(row))
    save_measured(output, {"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
