"""What is lost where every document begins with words that say nothing of it: a letterhead, a menu, front matter.

The collections of `learn_data`, searched with the built-in pair and BM25 as they are, and with each beginning before
every document. Both sides of the search weigh documents from their beginning.

    python -m benchmarks.experiments.beginnings CACHE --output RESULT.json
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import click
from care_benchmarks.statistics import Comparison, compare_with_base

from benchmarks.experiments.bm25_constants import Constants, Searched, scores
from benchmarks.experiments.learn_data import read_texts
from benchmarks.perf.measured import output_option, save_measured
from care_qdrant.model.pair import CareModel

BEGINNINGS = {
    "greeting": "您好，很高兴为您解答。",
    "letterhead": "某某市第一人民医院\n健康教育资料 编号 2024-001\n地址：人民路1号 电话：12345\n",
    "menu": "首页 医院概况 科室导航 专家介绍 预约挂号 健康科普 医院新闻 联系我们 当前位置：首页 健康科普 正文\n",
    "front matter": "---\nlayout: post\nauthor: admin\ndate: 2024-01-01\ntags: health\n---\n",
    "contents": "目录 一、概述 二、病因 三、临床表现 四、检查 五、诊断 六、治疗 七、预防 八、护理 参考文献\n",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One beginning before every document of one collection; nDCG@10."""

    collection: str
    beginning: str
    characters: int
    bm25: float
    hybrid: float
    """With the pair's term weights."""
    losses: dict[str, Comparison]
    """Against the documents as they are, by question; empty for those."""


@click.command()
@click.argument("cache", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--source", "sources", multiple=True, help="Collections.  [default: all of CACHE]")
@output_option
def main(cache: Path, sources: tuple[str, ...], output: Path) -> None:
    """Search the collections of CACHE with each beginning before every document.

    \b
    Example:
      python -m benchmarks.experiments.beginnings CACHE --output benchmarks/results/beginnings.json
    """
    model, rows = CareModel.load(), []
    for source in sources or sorted(path.stem for path in cache.glob("*.json")):
        texts = read_texts(cache, source)
        questions = [(source, text, set(found)) for text, found in zip(texts.questions, texts.relevant, strict=True)]
        asked, base = model.encode_query(texts.questions), None
        for name, beginning in {"none": "", **BEGINNINGS}.items():
            documents = [beginning + text for text in texts.documents]
            cosines = [asked @ model.encode_document(documents).T]
            searched = Searched(source, questions, documents, cosines)
            found = scores(searched, [Constants()], [model.query_terms])[Constants()]
            base = base or found
            losses = {}
            for kind in ("bm25", "hybrid") if name != "none" else ():
                [losses[kind]] = compare_with_base("none", {"none": base[kind], name: found[kind]})
            row = Row(source, name, len(beginning), float(found["bm25"].mean()), float(found["hybrid"].mean()), losses)
            rows.append(row)
            click.echo(f"{source:16} {name:12} BM25 {row.bm25:.4f} hybrid {row.hybrid:.4f}", err=True)
    save_measured(output, {"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
