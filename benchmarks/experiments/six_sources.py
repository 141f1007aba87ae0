"""The included pair on six sources that no weight has read, and other tables for the same document encoder.

The temperature and the steps of the table and the share of the dense score were chosen here. Three of the collections
have generated questions, one templates, one real dialogues, one search queries; their licenses allow no publication.

Tables are trained from WORK, the folder of `pretrained_pair`: for each seed the included one, one from a random start,
and a Stage II after the included one; with the first seed other settings.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
from care_benchmarks.statistics import Comparison, compare_with_base
from care_trainer.learn import table as tables
from care_trainer.learn.settings import LearnSettings
from care_trainer.models.tokens import tokenize
from tokenizers import Tokenizer

from benchmarks.experiments.pretrained_pair import SETTINGS, Lesson, read_lesson
from benchmarks.experiments.pretrained_texts import Texts, pairs_of, read_rows, texts_of
from benchmarks.experiments.single_answer import Bm25, Judged, Scores, fused
from benchmarks.perf.measured import output_option, save_measured
from care_qdrant.encoders.terms.analyser import DEFAULT
from care_qdrant.model.care_model import CareModel
from care_qdrant.types import Vectors

SOURCES = {
    "huatuo_llama": "generated questions",
    "genmedgpt_zh": "generated questions",
    "med_chatglm": "generated questions",
    "lifafangyao": "templates",
    "covid_dialogue": "real dialogues",
    "kuake_qtr": "search queries",
}
DOCUMENTS, QUESTIONS = 2_000, 500
SHARES = tuple(round(step / 20, 2) for step in range(8, 20))
STAGE_TWO = replace(SETTINGS, temperature=0.06, softness=0, max_steps=150)
BASE = "the pair"
ENCODER = "the document encoder on both sides"


@dataclass(frozen=True, slots=True)
class Row:
    """One way to search; nDCG@10."""

    system: str
    mean: float
    """Over the sources, each counting the same; of several seeds, over those."""
    by_source: Mapping[str, float]
    seeds: Sequence[float] = ()
    """Mean over the sources of each seed, where there are several."""


def read_source(rows: Sequence[dict[str, str]], source: str) -> Judged:
    """Return at most 2,000 documents and 500 questions of a source."""
    rows = [row for row in rows if row["source"] == source]
    random.Random(3).shuffle(rows)
    documents = list(dict.fromkeys(row["positive"] for row in rows))[:DOCUMENTS]
    places = {text: place for place, text in enumerate(documents)}
    asked = {row["query"]: places[row["positive"]] for row in reversed(rows) if row["positive"] in places}
    first = list(dict.fromkeys(row["query"] for row in rows if row["query"] in asked))[:QUESTIONS]
    return Judged(source, first, documents, np.array([asked[question] for question in first]))


@dataclass(frozen=True, slots=True)
class Encoded:
    """One source with the document encoder's vectors, and the sparse part of the fusion."""

    judged: Judged
    documents: Vectors
    questions: Vectors
    sparse: Scores
    plain: Scores
    """The sparse part without weights of query terms."""


def encode(judged: Judged, model: CareModel, cache: Path) -> Encoded:
    """Encode a source; its vectors are kept in a folder of the model."""
    folder = cache / model.fingerprint[:12]
    folder.mkdir(parents=True, exist_ok=True)
    kept = []
    for side, prompt, texts in (("documents", None, judged.documents), ("questions", "query: ", judged.questions)):
        if not (file := folder / f"{judged.name}-{side}.npy").is_file():
            np.save(file, model.document_encoder.encode(texts, prompt=prompt))
        kept.append(np.load(file))
    bm25 = Bm25(DEFAULT)
    return Encoded(judged, kept[0], kept[1], bm25.scores(judged, model.query_terms), bm25.scores(judged))


def systems(source: Encoded, model: CareModel) -> dict[str, Scores]:
    """Return nDCG@10 of each question by each way to search that needs no training."""
    judged, alpha = source.judged, model.alpha or 0.5
    table = model.encode_query(judged.questions)
    pair, both = table @ source.documents.T, source.questions @ source.documents.T
    alone = table @ model.encode_query(judged.documents).T
    scores = {
        BASE: pair,
        ENCODER: both,
        "the query encoder on both sides": alone,
        "BM25": source.plain,
        "BM25, with weights of query terms": source.sparse,
        "hybrid, the recorded share": fused(pair, source.sparse, alpha),
        "hybrid, without weights of query terms": fused(pair, source.plain, alpha),
        "the document encoder on both sides, hybrid": fused(both, source.sparse, alpha),
        **{f"hybrid, share {share}": fused(pair, source.sparse, share) for share in SHARES},
    }
    return {name: judged.ndcg_at_10(each) for name, each in scores.items()}


def train(
    data: Path, wordnet: Path, work: Path, cache: Path, seeds: Sequence[int]
) -> Iterator[tuple[str, list[Vectors]]]:
    """Yield the tables of each variant, one for each seed; those that are in the cache are not trained again."""
    texts, tokenizer = texts_of(data, wordnet, work), Tokenizer.from_file(str(work / "query.json"))
    lesson = read_lesson(tokenizer, texts, work / "vectors")
    answers = answers_of(data, work, texts, lesson, tokenizer)
    vocabulary = len(lesson.start)

    def kept(name: str, seed: int, fit: Lesson, start: Vectors, settings: LearnSettings) -> Vectors:
        if not (file := cache / f"{name.replace(' ', '-')}-{seed}.npy").is_file():
            np.save(file, fit.fit(start, replace(settings, seed=seed)))
        return np.asarray(np.load(file))

    included = [kept("stage one", seed, lesson, lesson.start, SETTINGS) for seed in seeds]
    yield "Stage I, as included", included
    yield "… and Stage II", [kept("two", s, answers, t, STAGE_TWO) for s, t in zip(seeds, included, strict=True)]
    yield "Stage II alone", [kept("two alone", seed, answers, lesson.start, SETTINGS) for seed in seeds]
    yield (
        "Stage I from a random start",
        [
            kept("random", seed, lesson, tables.start_table(lesson.tokens, vocabulary, 384, seed), SETTINGS)
            for seed in seeds
        ],
    )
    yield "the start alone", [lesson.start]
    for name, settings in {
        "twice the steps": replace(SETTINGS, max_steps=2 * SETTINGS.max_steps),
        "half the temperature": replace(SETTINGS, temperature=SETTINGS.temperature / 2),
        "twice the temperature": replace(SETTINGS, temperature=2 * SETTINGS.temperature),
        "without soft targets": replace(SETTINGS, softness=0),
    }.items():
        yield f"Stage I, {name}", [kept(name, seeds[0], lesson, lesson.start, settings)]


def answers_of(data: Path, work: Path, texts: Texts, lesson: Lesson, tokenizer: Tokenizer) -> Lesson:
    """Return the lesson of Stage II: questions, and the vectors of the documents that answer them."""
    chinese, english = pairs_of(data, work)
    places = {text: place for place, text in enumerate(texts.documents)}
    pairs = [pair for pair in [*chinese, *english] if pair["positive"] in places]
    tokens = tokenize(tokenizer, [pair["query"] for pair in pairs])
    targets = lesson.documents[[places[pair["positive"]] for pair in pairs]]
    read = np.flatnonzero(tokens.lengths > 0)
    return Lesson(tokens.take(read), targets[read], lesson.documents, lesson.start)


def row_of(system: str, by_source: Mapping[str, Scores], seeds: Sequence[float] = ()) -> Row:
    """Return a row, and print it."""
    means = {source: round(float(each.mean()), 4) for source, each in by_source.items()}
    row = Row(system, round(float(np.mean(list(means.values()))), 4), means, seeds)
    click.echo(f"{row.system:45} {row.mean:.4f} {[round(value, 3) for value in means.values()]} {seeds}", err=True)
    return row


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--model", default="built-in", show_default=True, help="Pair: a name or a folder.")
@click.option(
    "--work", type=click.Path(path_type=Path, exists=True), help="Folder of pretrained_pair, to train other tables."
)
@click.option(
    "--wordnet", type=click.Path(path_type=Path), default="/usr/share/wordnet", show_default=True, help="Its files."
)
@click.option("--cache", type=click.Path(path_type=Path), required=True, help="Folder of vectors and tables.")
@click.option("--seeds", default="0,1,2", show_default=True, help="Seeds of the tables, by commas.")
@output_option
def main(data: Path, model: str, work: Path | None, wordnet: Path, cache: Path, seeds: str, output: Path) -> None:
    """Score a pair on six sources of DATA, and other tables in place of its own.

    \b
    Example:
      python -m benchmarks.experiments.six_sources data --work build/pretrained --cache build/six \\
        --output benchmarks/results/six-sources.json
    """
    pair, cache = CareModel.load(model), cache.resolve()
    pairs = read_rows(data / "train" / "pairs_research.jsonl.gz")
    sources = [encode(read_source(pairs, name), pair, cache) for name in SOURCES]
    found = {source.judged.name: systems(source, pair) for source in sources}
    names = next(iter(found.values()))
    rows = [row_of(name, {source: its[name] for source, its in found.items()}) for name in names]
    pooled = {
        name: np.concatenate([its[name] for its in found.values()])
        for name in names
        if not name.startswith("hybrid, share")
    }
    compared: list[Comparison] = compare_with_base(BASE, pooled)
    for name, made in train(data, wordnet, work, cache, [int(seed) for seed in seeds.split(",")]) if work else ():
        rows.append(score_tables(name, made, sources, Tokenizer.from_file(str(work / "query.json"))))
    save_measured(
        output,
        {
            "alpha": pair.alpha,
            "sources": {
                one.judged.name: {
                    "kind": SOURCES[one.judged.name],
                    "questions": len(one.judged.questions),
                    "documents": len(one.judged.documents),
                }
                for one in sources
            },
            "rows": [asdict(row) for row in rows],
            "against_pair": [asdict(each) for each in compared],
        },
    )


def score_tables(name: str, made: Sequence[Vectors], sources: Sequence[Encoded], tokenizer: Tokenizer) -> Row:
    """Return the row of the tables of a variant."""
    by_seed = []
    for table in made:
        scored = {}
        for source in sources:
            dense = tables.encode(table.astype(np.float32), tokenize(tokenizer, source.judged.questions))
            scored[source.judged.name] = source.judged.ndcg_at_10(dense @ source.documents.T)
        by_seed.append(scored)
    means = [round(float(np.mean([each.mean() for each in scored.values()])), 4) for scored in by_seed]
    together = {source: np.mean([scored[source] for scored in by_seed], axis=0) for source in by_seed[0]}
    return row_of(name, together, means if len(means) > 1 else ())


if __name__ == "__main__":
    main()
