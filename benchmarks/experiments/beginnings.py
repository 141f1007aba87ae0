"""Loss of search quality where every document begins with words that say nothing of it: a letterhead, a menu.

The sample's passages without their titles, and with each beginning in front of all of them, searched with the natural
questions. The built-in pair and BM25 both weigh documents from their beginning.

    python -m benchmarks.experiments.beginnings examples/sample --output benchmarks/results/beginnings.json
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from qdrant_client import QdrantClient

from benchmarks.experiments.natural_questions import MODES, Row, ranks, read_questions, rows_of
from benchmarks.perf.measured import output_option, save_measured
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document

BEGINNINGS = {
    "none": "",
    "greeting": "您好，很高兴为您解答。",
    "letterhead": "某某市第一人民医院\n健康教育资料 编号 2024-001\n地址：人民路1号 电话：12345\n",
    "menu": "首页 医院概况 科室导航 专家介绍 预约挂号 健康科普 医院新闻 联系我们 当前位置：首页 健康科普 正文\n",
    "front matter": "---\nlayout: post\nauthor: admin\ndate: 2024-01-01\ntags: health\n---\n",
    "contents": "目录 一、概述 二、病因 三、临床表现 四、检查 五、诊断 六、治疗 七、预防 八、护理 参考文献\n",
}


@dataclass(frozen=True, slots=True)
class Found:
    """One beginning in front of every passage."""

    beginning: str
    characters: int
    reported: bool
    """Whether ingestion names it as one that many documents share."""
    found: Row
    """Searches of all askers' questions."""


@click.command()
@click.argument("sample", type=click.Path(path_type=Path, exists=True, file_okay=False))
@output_option
def main(sample: Path, output: Path) -> None:
    """Search the passages of SAMPLE with each beginning in front of all of them.

    \b
    Example:
      python -m benchmarks.experiments.beginnings examples/sample --output benchmarks/results/beginnings.json
    """
    questions, model, results = read_questions(sample / "natural.jsonl"), CareModel.load(), []
    passages = [json.loads(line) for line in (sample / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    for name, beginning in BEGINNINGS.items():
        client = QdrantClient(":memory:")
        documents = [Document(row["id"], beginning + row["text"]) for row in passages]
        report = ingest(documents, model, client, "sample", settings=IngestSettings(sparse=True))
        for mode in MODES:
            found = ranks(Retriever(client, "sample", model, mode=mode), questions)
            [row] = (row for row in rows_of(mode, questions, found) if row.asker == "all")
            results.append(Found(name, len(beginning), report.same_beginning is not None, row))
            click.echo(
                f"{name:12} {mode:7} among the first three {row.in_first_three:6.1%}  "
                f"MRR {row.mean_reciprocal_rank:.3f}",
                err=True,
            )
    save_measured(output, {"rows": [asdict(each) for each in results]})


if __name__ == "__main__":
    main()
