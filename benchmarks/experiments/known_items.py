"""English known-item search with the included pair: does the heading of a section of documentation find the section?

The sections are those of reStructuredText and Markdown files in the source distributions of open packages, which
neither encoder has read. They are not part of this repository:

    pip download --no-deps --no-binary :all: django==5.2.19 sqlalchemy==2.1.9 pytest==9.2.0 sphinx==9.0.4

A query is the heading, a document the text below it up to the next heading, without the heading.
"""

import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from care_benchmarks.lexical import scroll_points
from care_benchmarks.statistics import Comparison, Interval, compare_with_base, mean_interval
from qdrant_client import QdrantClient, models

from benchmarks.experiments.single_answer import Bm25, Judged, Scores, fused
from benchmarks.perf.measured import output_option, save_measured
from care_qdrant import measures
from care_qdrant.encoders.terms.analyser import analyser_for, find_analyser
from care_qdrant.encoders.terms.sparse import native_bm25
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.search.retriever import Mode, Retriever
from care_qdrant.types import Document
from tests.reliability.processes import QdrantServer

SECTIONS = 1_000
"""Largest number of sections of one package; of more, a random part."""
CHARACTERS = (200, 1_000)
"""Least length of a section, and where it is cut: some 250 tokens, which is what the document encoder reads."""
NO_DOCUMENTATION = {"announce", "changelog", "changes", "releases"}
"""Folders and files of release notes, whose headings are versions."""
SHARES = tuple(round(step / 20, 2) for step in range(6, 20))
CONSTANTS = tuple((k1, b, lead) for k1 in (0.4, 0.8, 1.2) for b in (0.3, 0.5, 0.75) for lead in (40.0, None))
HYBRID = "hybrid, the recorded share"
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*$")
_MARKUP = re.compile(r"^\s*\.\. [\w:-]+::|:[\w:+-]+:(?=`)|^\s*\.\. _.*$|[`*|]|<[^<>\n]*>(?=`)", re.M)


@dataclass(frozen=True, slots=True)
class Row:
    """One way to search the sections of one package, or of all."""

    package: str
    system: str
    questions: int
    ndcg_at_10: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Choice:
    """Constants of BM25, and the share of the dense score, on one package."""

    package: str
    k1: float
    b: float
    lead: float | None
    bm25: float
    """nDCG@10 of BM25 alone."""
    hybrid: Mapping[str, float]
    """nDCG@10 by the share of the dense score."""


def read_sections(folder: Path) -> Judged:
    """Return the headings and sections of a package's documentation, in an order that is the same on each machine."""
    found: dict[str, str] = {}
    headings = Counter[str]()
    for path in sorted(file for kind in ("rst", "txt", "md") for file in folder.glob(f"doc*/**/*.{kind}")):
        if NO_DOCUMENTATION & set(path.relative_to(folder).with_suffix("").parts):
            continue
        for heading, text in _sections(path.read_text(encoding="utf-8", errors="replace").splitlines()):
            headings[heading.lower()] += 1
            if len(heading.split()) > 1 and len(text) >= CHARACTERS[0]:
                found[heading] = text[: CHARACTERS[1]]
    texts = {text: heading for heading, text in found.items() if headings[heading.lower()] == 1}
    pairs = sorted((heading, text) for text, heading in texts.items())
    random.Random(0).shuffle(pairs)
    pairs = pairs[:SECTIONS]
    return Judged(folder.name, [a for a, _ in pairs], [b for _, b in pairs], np.arange(len(pairs)))


def _sections(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each heading with the text up to the next one."""
    heads = []
    for number, (line, below) in enumerate(zip(lines, [*lines[1:], ""], strict=True)):
        if (markdown := re.match(r"#{1,6} (.+)", line)) is not None:
            heads.append((number, number + 1, markdown[1]))
        elif line.strip() and not _UNDERLINE.match(line) and _UNDERLINE.match(below) and len(below) + 2 > len(line):
            heads.append((number, number + 2, line))
    for (_, begin, heading), (end, _, _) in zip(heads, [*heads[1:], (len(lines), 0, "")], strict=False):
        body = [line for line in lines[begin:end] if not _UNDERLINE.match(line.strip())]
        yield _plain(heading), _plain("\n".join(body))


def _plain(text: str) -> str:
    return " ".join(_MARKUP.sub(" ", text).split())


def of_server(judged: Judged, client: QdrantClient) -> Scores:
    """Return nDCG@10 of each question by Qdrant's own ``bm25``, whose terms the server makes, with its defaults."""
    name = re.sub(r"\W", "-", judged.name)
    client.create_collection(
        name, sparse_vectors_config={"terms": models.SparseVectorParams(modifier=models.Modifier.IDF)}
    )
    points = [
        models.PointStruct(id=row, vector={"terms": native_bm25(text)}) for row, text in enumerate(judged.documents)
    ]
    for start in range(0, len(points), 100):
        client.upsert(name, points[start : start + 100], wait=True)
    found = [
        [hit.id for hit in client.query_points(name, query=native_bm25(question), using="terms", limit=10).points]
        for question in judged.questions
    ]
    return np.array(measures.ndcg_at_10(found, [{answer} for answer in judged.answers.tolist()]))


def of_product(judged: Judged, model: CareModel, client: QdrantClient) -> tuple[dict[str, Scores], Scores]:
    """Return nDCG@10 of each question by each mode of the product's search, and the vectors of the documents."""
    rows = [Document(str(row), text) for row, text in enumerate(judged.documents)]
    ingest(rows, model, client, judged.name, settings=IngestSettings(sparse=True, overflow="truncate"))
    found: dict[str, Scores] = {}
    modes: dict[Mode, str] = {"dense": "the pair", "sparse": "BM25, English", "hybrid": HYBRID}
    for mode, system in modes.items():
        hits = Retriever(client, judged.name, model, mode=mode).search(judged.questions, top_k=10)
        ids = [[hit.document_id for hit in its] for its in hits]
        found[system] = np.array(measures.ndcg_at_10(ids, [{str(answer)} for answer in judged.answers]))
    vectors = dict(scroll_points(client, judged.name, [model.name]))
    return found, np.array([vectors[str(row)][model.name] for row in range(len(rows))], np.float32)


def measure(judged: Judged, model: CareModel, server: QdrantClient) -> tuple[dict[str, Scores], list[Choice]]:
    """Return nDCG@10 of each question by system, and the choices of constants."""
    found, documents = of_product(judged, model, QdrantClient(":memory:"))
    former = find_analyser("zh-char-bigram-1")
    assert former is not None
    english = analyser_for("english")
    dense = model.encode_query(judged.questions) @ documents.T
    both = model.document_encoder.encode(judged.questions, prompt="query: ") @ documents.T
    sparse = Bm25(english).scores(judged)
    found |= {
        "the document encoder on both sides": judged.ndcg_at_10(both),
        "the same with BM25, the recorded share": judged.ndcg_at_10(fused(both, sparse, model.alpha or 0.5)),
        "BM25, characters, as before the analysers": judged.ndcg_at_10(Bm25(former).scores(judged)),
        "BM25, English, k1 1.2, b 0.75, all positions alike": judged.ndcg_at_10(
            Bm25(english, 1.2, 0.75, None).scores(judged)
        ),
        "Qdrant's bm25": of_server(judged, server),
    }
    choices = []
    for k1, b, lead in CONSTANTS:
        scores = Bm25(english, k1, b, lead).scores(judged)
        hybrid = {
            str(share): round(float(judged.ndcg_at_10(fused(dense, scores, share)).mean()), 4) for share in SHARES
        }
        choices.append(Choice(judged.name, k1, b, lead, round(float(judged.ndcg_at_10(scores).mean()), 4), hybrid))
    return found, choices


def rows_of(package: str, found: Mapping[str, Scores]) -> list[Row]:
    """Return a row for each system, and print it."""
    rows = [Row(package, name, len(each), float(each.mean()), mean_interval(each)) for name, each in found.items()]
    for row in rows:
        click.echo(
            f"{package:20} {row.system:50} {row.ndcg_at_10:.4f} ({row.interval.low:.3f} … {row.interval.high:.3f})",
            err=True,
        )
    return rows


@click.command()
@click.argument("packages", type=click.Path(path_type=Path, exists=True, file_okay=False), nargs=-1, required=True)
@click.option("--binary", envvar="QDRANT_BINARY", show_envvar=True, required=True, help="Program of a Qdrant server.")
@click.option("--model", default="built-in", show_default=True, help="Pair: a name or a folder.")
@output_option
def main(packages: tuple[Path, ...], binary: str, model: str, output: Path) -> None:
    """Search the documentation in PACKAGES, folders of unpacked source distributions, by its headings.

    \b
    Example:
      python -m benchmarks.experiments.known_items sdists/* --binary qdrant --output build/known-items.json
    """
    pair, rows, choices, all_found = CareModel.load(model), list[Row](), list[Choice](), list[dict[str, Scores]]()
    with tempfile.TemporaryDirectory() as folder, QdrantServer(binary, Path(folder)) as server:
        client = QdrantClient(url=server.url)
        for package in packages:
            found, its_choices = measure(read_sections(package), pair, client)
            all_found.append(found)
            rows += rows_of(package.name, found)
            choices += its_choices
    pooled = {name: np.concatenate([found[name] for found in all_found]) for name in all_found[0]}
    rows += rows_of("all", pooled)
    compared: list[Comparison] = compare_with_base(HYBRID, pooled)
    save_measured(
        output,
        {
            "alpha": pair.alpha,
            "rows": [asdict(row) for row in rows],
            "against_hybrid": [asdict(each) for each in compared],
            "choices": [asdict(choice) for choice in choices],
        },
    )


if __name__ == "__main__":
    main()
