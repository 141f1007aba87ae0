"""Step 4: write the labels as a task directory for `care bench run` and the loaders of BEIR and mteb, with a data card.

``corpus.jsonl``, ``queries.jsonl`` and ``qrels/test.tsv`` are BEIR's; the card's header makes data set configurations
of JSON Lines, which is what mteb loads. ``disputed.jsonl`` holds the pairs without a clear label.
"""

import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from care_data.config import Config
from care_data.files import LABELS, read_json, read_rows, write_json, write_rows, write_text
from care_data.near import NearTexts
from care_data.pool import CORPUS, POOL, QUERIES, collection_changes
from care_data.prompts import render
from care_data.source import shown
from care_data.sts import PAIRS, drawn
from care_qdrant.errors import InputError, counted

logger = logging.getLogger(__name__)

BENCHMARK = "benchmark"
_SHOWN = 5  # leaks that an error names
Qrels = dict[str, dict[str, int]]


def run_build(config: Config, _: bool = False) -> dict[str, Any]:
    """Write the benchmark, and return the facts of its card."""
    settings, folder = config.settings.build, config.folder
    target = folder / BENCHMARK
    labels = list(read_rows(folder / LABELS, config.command("vote")))
    _refuse_same_judges(config)
    qrels = _qrels(labels, folder)
    questions = {row["id"]: row for row in read_rows(folder / QUERIES) if row["id"] in qrels}
    repeated = _repeated(config, questions)
    if repeated and not settings.drop:
        some = "\n  ".join(f"{question}: {why}" for question, why in list(repeated.items())[:_SHOWN])
        raise InputError(
            f"{counted(len(repeated), 'question', 'repeat')} another one or a training set:\n  {some}\n"
            "remove them from the questions, or set build.drop = true"
        )
    answered = {query: grades for query, grades in qrels.items() if query not in repeated and any(grades.values())}
    asked = [row["id"] for row in read_rows(folder / QUERIES)]
    undecided = [name for name in asked if name not in qrels]
    if len(answered) < max(1, settings.min_answered * (len(asked) - len(repeated))):
        raise InputError(
            f"only {counted(len(answered), 'question', 'have', of=len(asked))} a document that is labelled relevant: "
            f"{len(repeated):,} are repeated, {len(undecided):,} have disputed or missing votes alone, and the others "
            "have none. Such a benchmark says little about the rest: ask judges again "
            f"({config.command('judge')} --again NAME), give deeper pools, or set build.min_answered below "
            f"{settings.min_answered:g}"
        )
    if len(answered) < len(asked):
        logger.warning(
            "%s in the benchmark: %d are repeated, %d have disputed or missing votes alone, the "
            "others no relevant document",
            counted(len(answered), "question", "are", of=len(asked)),
            len(repeated),
            len(undecided),
        )
    pooled = {row["document_id"] for row in read_rows(folder / POOL)} | {
        name for of in answered.values() for name in of
    }
    whole = settings.corpus == "whole"
    documents = {row["id"]: row for row in read_rows(folder / CORPUS) if whole or row["id"] in pooled}
    texts = ({"_id": name, "title": row.get("title") or "", "text": row["text"]} for name, row in documents.items())
    write_rows(target / "corpus.jsonl", texts)
    write_rows(target / "queries.jsonl", ({"_id": name, "text": questions[name]["text"]} for name in answered))
    judged = [(query, document, grade) for query, row in answered.items() for document, grade in row.items()]
    # One data set has one format: what mteb loads cannot be JSON Lines and a table at once.
    keys = ("query-id", "corpus-id", "score")
    write_text(target / "qrels" / "test.tsv", "".join("\t".join(map(str, row)) + "\n" for row in (keys, *judged)))
    write_rows(target / "qrels" / "test.jsonl", (dict(zip(keys, row, strict=True)) for row in judged))
    reranked = write_rows(target / "rerank.jsonl", _rerank(config, questions, answered, documents))
    pairs = drawn(read_rows(folder / PAIRS, config.command("sts")) if config.settings.sts else ())
    sts = write_rows(target / "sts.jsonl", pairs)
    if not config.settings.sts:  # a task of the harness, if it is there
        (target / "sts.jsonl").unlink()
    disputed = [row for row in labels if row["label"] in ("disputed", "missing") and row["query_id"] in answered]
    write_rows(target / "disputed.jsonl", disputed)
    card = {
        "name": config.settings.name,
        "asked": len(asked),
        "questions": len(answered),
        "undecided": len(undecided),
        "without_a_positive": len(qrels) - len(repeated.keys() & qrels.keys()) - len(answered),
        "repeated": len(repeated),
        "documents": len(documents),
        "relevant": sum(grade for _, _, grade in judged),
        "irrelevant": sum(not grade for _, _, grade in judged),
        "disputed": len(disputed),
        "rerank_questions": reranked,
        "sts_pairs": sts,
        "collection_changed": collection_changes(config),
        "origin": config.settings.source.origin,
        "license": config.settings.source.license,
    }
    judging = read_json(folder / "judge.json") if config.settings.judge else {"judges": [], "cost": 0.0}
    reports = {"pool": read_json(folder / "pool.json"), "vote": read_json(folder / "vote.json"), "judging": judging}
    write_json(target / "card.json", card | reports)
    write_text(target / "README.md", render("card.md", card=card | reports) + "\n")
    return card | {"folder": str(target)}


def _qrels(labels: Iterable[Mapping[str, Any]], folder: Path) -> Qrels:
    """Return the grades of each question; near-duplicates have the label of the text that was judged."""
    copies = {(row["query_id"], row["document_id"]): row["duplicates"] for row in read_rows(folder / POOL)}
    qrels: Qrels = {}
    for row in labels:
        if row["label"] in ("relevant", "irrelevant"):
            for document in (row["document_id"], *copies[row["query_id"], row["document_id"]]):
                qrels.setdefault(row["query_id"], {})[document] = int(row["label"] == "relevant")
    return qrels


def _rerank(
    config: Config, questions: Mapping[str, Any], qrels: Qrels, documents: Mapping[str, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield questions that have positives and negatives, with a sample of their judged negatives [3.1]."""
    for query, grades in qrels.items():
        positive, others = (
            list(dict.fromkeys(shown(documents[name]) for name, grade in grades.items() if bool(grade) is side))
            for side in (True, False)
        )
        negative = [text for text in others if text not in set(positive)]
        draw, most = random.Random(f"rerank {query}"), config.settings.build.rerank_negatives
        if positive and (sample := draw.sample(negative, min(len(negative), most))):
            yield {"query": questions[query]["text"], "positive": positive, "negative": sample}


def _repeated(config: Config, questions: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the questions that nearly equal an earlier one, or a text of a training set, with the reason."""
    near, reasons = NearTexts(config.settings.build.near_duplicate), dict[str, str]()
    for name, row in questions.items():
        if others := near.find(row["text"]):
            reasons[name] = f"nearly equals question {others[0]}"
        else:
            near.add(name, row["text"])
    for file in config.settings.build.train:
        for number, row in enumerate(read_rows(config.at(file)), start=1):
            for key in ("query", "text", "sentence1", "sentence2"):
                for known in near.find(row[key]) if isinstance(row.get(key), str) else ():
                    reasons.setdefault(known, f"is in {file}:{number}")
    return reasons


def _refuse_same_judges(config: Config) -> None:
    """Refuse judges that also labelled a training set, since a model trained on their labels would be favoured."""
    rows = (row for file in config.settings.build.train for row in read_rows(config.at(file)))
    both = set(config.families) & {family for row in rows for family in row.get("judge_families") or ()}
    if both and not config.settings.build.allow_same_judges:
        raise InputError(
            f"judges of the family {', '.join(sorted(both))} also labelled a training set: a model trained on it is "
            "favoured; use other judges, or set build.allow_same_judges = true and say so"
        )
