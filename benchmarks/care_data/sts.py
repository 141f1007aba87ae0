"""Sentence pairs from synonyms: an STS task and training pairs, checked by the same judges (3.1, tables 18 and 22).

Of a question and a synonym, a model writes a positive (another word, the same intent), a hard negative (another word,
another intent) and an easy one (the same word, another intent).
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from care_data.config import Config
from care_data.files import Rows, read_rows, write_json, write_rows
from care_data.judging import LEDGER, TextsToRate, rate
from care_data.prompts import read_object, render
from care_data.source import read_questions
from care_data.vote import label_without_experts
from care_data.wire import calling
from care_qdrant.errors import InputError

PAIRS = "sts.jsonl"
_KINDS = {"positive": "positive", "negative-1": "hard", "negative-2": "easy"}
"""Kind of sentence by key of the writer's answer (table 22)."""


def run_sts(config: Config, replay: bool = False) -> dict[str, Any]:
    """Write sentence pairs that the judges confirm, and return how many of each kind."""
    settings, judging = config.settings.sts, config.settings.judging
    if settings is None or not config.settings.judge:
        raise InputError("sentence pairs need [sts] with its dictionary and writer, and a [[judge]] that checks them")
    synonyms = list(_synonyms(config))
    questions = read_questions(config.at(config.settings.source.queries))
    chosen = [(row, word) for row in questions if (word := _word(row["text"], synonyms))]
    if not chosen:
        raise InputError(f"no question contains a word of {settings.dictionary}, so there is nothing to rewrite")
    name, tolerance = f"sts.{judging.language}", settings.length_tolerance
    prompts = [render(name, **word, question=q["text"], replaced=_replaced(q["text"], word)) for q, word in chosen]

    def read(number: int, text: str) -> dict[str, str] | None:
        return _checked(read_object(text), *chosen[number], tolerance)

    ledger, again = config.folder / LEDGER, config.again
    with calling(ledger, judging.max_cost, [settings.writer], replay, again) as (_, [writer]):
        written = dict(
            zip((row["id"] for row, _ in chosen), writer.ask_all(prompts, read, judging.attempts), strict=True)
        )
    texts = {f"{name} {kind}": text for name, of in written.items() if of for kind, text in of.items()}
    ranked = {name: [f"{name} {kind}" for kind in of] for name, of in written.items() if of}
    asked = {row["id"]: row["text"] for row, _ in chosen}
    to_rate = TextsToRate(replace(judging, stop_after=None, batch=len(_KINDS)), asked, ranked, texts, template="same")
    ratings, _, report = rate(config, to_rate, replay=replay)
    votes: dict[str, dict[str, int | None]] = {}
    for rating in ratings:
        votes.setdefault(rating.document_id, {})[rating.judge] = rating.grade
    tiers = {
        judge.name: judge.tier for judge in config.settings.judge if judge.name not in config.settings.vote.exclude
    }
    rows, left_out = Rows(), Counter[str]()
    for question, word in chosen:
        for kind in written[question["id"]] or ():
            key, score = f"{question['id']} {kind}", int(kind == "positive")
            given = {judge: grade for judge, grade in votes[key].items() if judge in tiers}
            if label_without_experts(given, tiers, config.settings.vote.rule) != (
                "relevant" if score else "irrelevant"
            ):
                left_out[kind] += 1
                continue
            licenses = (question.get("license") or config.settings.source.license, word["license"])
            row = {"id": question["id"], "sentence1": question["text"], "sentence2": texts[key], "score": score}
            row |= {"kind": kind, "source": question.get("source") or config.settings.name}
            row |= {"license": " AND ".join(dict.fromkeys(filter(None, licenses)))}
            rows.append(row | {"judge_families": config.families})
    report |= {"questions": len(questions), "with_a_synonym": len(chosen), "written": len(ranked)}
    report |= {"pairs": Counter(row["kind"] for row in rows), "not_confirmed": left_out}
    write_rows(config.folder / PAIRS, rows)
    write_json(config.folder / "sts.json", report)
    return report


def drawn(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield one random pair of each question, as in the paper's task."""
    of_question: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        of_question.setdefault(row["id"], []).append(row)
    yield from (random.Random(f"sts {name}").choice(of) for name, of in of_question.items())


def _synonyms(config: Config) -> Iterator[dict[str, str]]:
    path = config.at(config.settings.sts.dictionary) if config.settings.sts else config.root
    for number, row in enumerate(read_rows(path), start=1):
        origin, other = (str(row.get(key) or "").strip() for key in ("origin", "replace"))
        if not origin or not other or origin == other:
            raise InputError(f"{path}:{number}: is not a synonym; expected origin and replace, two different words")
        yield {"origin": origin, "replace": other, "license": str(row.get("license") or "")}


def _word(text: str, synonyms: Rows) -> dict[str, str] | None:
    """Return the synonym with the longest word in a question that does not contain its replacement."""
    fits = [word for word in synonyms if word["origin"] in text and word["replace"] not in text]
    return max(fits, key=lambda word: len(word["origin"]), default=None)


def _replaced(text: str, word: Mapping[str, str]) -> str:
    return text.replace(word["origin"], word["replace"])


def _checked(
    answer: Mapping[str, Any], question: Mapping[str, Any], word: Mapping[str, str], tolerance: float
) -> dict[str, str] | None:
    """Return the three sentences by kind, or None if they do not meet the conditions of table 22."""
    sentences = {kind: str(answer.get(key) or "").strip() for key, kind in _KINDS.items()}
    same_length = abs(len(sentences["positive"]) - len(question["text"])) <= tolerance * len(question["text"])
    words = {"positive": word["replace"], "hard": word["replace"], "easy": word["origin"]}
    has_words = all(words[kind] in text for kind, text in sentences.items())
    return sentences if same_length and has_words and len({question["text"], *sentences.values()}) == 4 else None
