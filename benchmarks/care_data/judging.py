"""Step 2: judges of tier 1 rate the pool in rounds by depth, then tier 2 rates what they dispute.

The requests depend only on the configuration and on answers in the ledger, so a killed run that is started again asks
only for the rest and has the same result as an uninterrupted run.
"""

import logging
import random
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from care_data.config import Config, Judge, Judging
from care_data.files import Rows, digest, read_rows, write_json, write_rows
from care_data.pool import CORPUS, POOL, QUERIES
from care_data.prompts import RELEVANT, read_grades, render
from care_data.source import ANCHOR, shown
from care_data.wire import Caller, JudgeUnreachable, calling, highest_price, without_price
from care_qdrant.errors import counted

logger = logging.getLogger(__name__)

JUDGEMENTS, LEDGER = "judgements.jsonl", "calls.sqlite"
PLANTED = {
    "irrelevant": "of other questions",
    "long": "long ones",
    "stuffed": "stuffed with the question",
}
"""Kinds of planted documents, in words."""
_LONG = 3  # unrelated documents that make one long planted one
_STUFFED = 5  # repetitions of a question in a stuffed one
_SHOWN = 300  # characters of an answer that could not be read


class Item(NamedTuple):
    """One document of a call: its id, or ``anchor:`` and the kind of a planted one, and its text."""

    name: str
    text: str


Batch = tuple[str, list[Item]]  # A question's id, and documents of one call


class Rating(NamedTuple):
    """One vote: a grade from 0 to 4 (D to S), or None and the reason for its absence."""

    judge: str
    query_id: str
    document_id: str
    grade: int | None
    reason: str = ""
    answer: str = ""  # the beginning of an answer that could not be read


def run_judge(config: Config, replay: bool = False) -> dict[str, Any]:
    """Ask the judges, and write their votes and cost."""
    folder, to_rate = config.folder, read_texts_to_rate(config)
    ratings, depths, report = rate(config, to_rate, replay=replay)
    report |= {
        "pairs": sum(map(len, to_rate.ranked.values())),
        "judged": len(
            {(rating.query_id, rating.document_id) for rating in ratings if not is_anchor(rating.document_id)}
        ),
        "mean_depth": sum(depths.values()) / max(1, len(depths)),
        "judges": [describe_judge(judge, ratings) for judge in config.settings.judge],
    }
    for judge in report["judges"]:
        if judge["unread"]:
            logger.warning(
                "judge %s: %s no grade, since its answers could not be read. The first of them: "
                "%r. When that is fixed (model, max_tokens, language): %s --again %s",
                judge["judge"],
                counted(judge["missing"]["invalid"], "document", "have", of=judge["asked"]),
                judge["unread"],
                config.command("judge"),
                shlex.quote(judge["judge"]),
            )
    ordered = sorted(ratings, key=lambda rating: (rating.query_id, rating.document_id, rating.judge))
    write_rows(folder / JUDGEMENTS, (rating._asdict() for rating in ordered))
    write_json(folder / "judge.json", report)
    return report


def rate(
    config: Config, to_rate: "TextsToRate", *, replay: bool
) -> tuple[list[Rating], dict[str, int], dict[str, Any]]:
    """Return all votes, the number of judged documents per question, and the cost."""
    judging, judges = config.settings.judging, config.settings.judge
    with calling(config.folder / LEDGER, judging.max_cost, judges, replay, config.again) as (ledger, callers):
        first, second = ([caller for caller in callers if caller.judge.tier == tier] for tier in (1, 2))
        ratings, depths = _by_depth(first, to_rate)
        if second:
            ratings += _rate(second, to_rate, to_rate.disputed(ratings, [caller.judge.name for caller in first]))
        bills, down = ledger.bills(), {caller.judge.name: caller.down for caller in callers if caller.down}
    for error in down.values():
        logger.warning("%s", error)
    if down and not judging.allow_missing:
        raise JudgeUnreachable("\n".join(map(str, down.values())))
    cost, risk = (sum(bill[key] for bill in bills) for key in ("cost", "at_risk"))
    return ratings, depths, {"cost": cost, "at_risk": risk, "bills": bills, "unreachable": sorted(down)}


def estimate(config: Config) -> dict[str, Any]:
    """Return the number of calls and the highest cost of judging the whole pool, without a call."""
    to_rate, judges = read_texts_to_rate(config), Rows()
    for judge in config.settings.judge:
        prices = [highest_price(judge, to_rate.prompt(judge, query, items)) for query, items in to_rate.all_batches()]
        judges.append({"judge": judge.name, "tier": judge.tier, "calls": len(prices), "highest_cost": sum(prices)})
    return {
        "pairs": sum(map(len, to_rate.ranked.values())),
        "judges": judges,
        "highest_cost": sum(judge["highest_cost"] for judge in judges),
        "without_price": without_price(config.settings.judge),
        "note": "an upper limit: tier 2 rates only what tier 1 disputes; stop_after and stored answers reduce it",
    }


def is_anchor(document_id: str) -> bool:
    """Return whether a rated document was planted."""
    return document_id.startswith(ANCHOR)


def describe_judge(judge: Judge, ratings: Sequence[Rating]) -> dict[str, Any]:
    """Return the record of a judge: votes, missing votes, and the planted documents that it rated relevant, by kind.

    ``unread`` is the beginning of its first answer that could not be read, by question and document; empty if all
    could be read.
    """
    given: list[int] = []
    missing, planted = Counter[str](), dict[str, list[bool]]()
    unread = sorted(rating for rating in ratings if rating.judge == judge.name and rating.reason == "invalid")
    for own in (rating for rating in ratings if rating.judge == judge.name):
        if is_anchor(own.document_id):
            hits = planted.setdefault(own.document_id.partition(":")[2], [])
            hits += [] if own.grade is None else [own.grade >= RELEVANT]
        elif own.grade is None:
            missing[own.reason] += 1
        else:
            given.append(own.grade)
    return {
        "judge": judge.name,
        "family": judge.family,
        "tier": judge.tier,
        "asked": len(given) + missing.total(),
        "votes": len(given),
        "missing": missing,
        "unread": unread[0].answer if unread else "",
        "relevant_share": sum(grade >= RELEVANT for grade in given) / max(1, len(given)),
        "planted": {kind: {"rated": len(hits), "called_relevant": sum(hits)} for kind, hits in sorted(planted.items())},
    }


def read_texts_to_rate(config: Config) -> "TextsToRate":
    """Return the texts of the pool for the judges."""
    ranked: dict[str, list[str]] = {}
    for row in read_rows(config.folder / POOL, config.command("pool")):
        ranked.setdefault(row["query_id"], []).append(row["document_id"])
    pooled = {name for names in ranked.values() for name in names}
    texts: dict[str, str] = {}
    # Long corpora: a few of the documents that no retriever found are enough to plant.
    spare: list[str] = []
    for row in read_rows(config.folder / CORPUS, config.command("pool")):
        if row["id"] in pooled:
            texts[row["id"]] = shown(row)
        elif len(spare) < 1_000:
            spare.append(shown(row))
    queries = {row["id"]: str(row["text"]) for row in read_rows(config.folder / QUERIES, config.command("pool"))}
    count = min(config.settings.judging.anchors, len(ranked))
    draw = random.Random(f"anchors {config.settings.judging.seed}")
    return TextsToRate(config.settings.judging, queries, ranked, texts, spare, set(draw.sample(sorted(ranked), count)))


@dataclass
class TextsToRate:
    """Texts to rate for each question, as batches, planted documents included."""

    settings: Judging
    queries: Mapping[str, str]
    ranked: Mapping[str, Sequence[str]]  # ids of the texts of each question, best first
    texts: Mapping[str, str]
    spare: Sequence[str] = ()  # texts that no retriever found, to plant
    planted: set[str] = field(default_factory=set)
    template: str = "judge"

    def batch(self, query: str, number: int) -> list[Item]:
        """Return batch ``number``, from 0, of a question's pool; empty past its end."""
        size = self.settings.batch
        return self._items(query, self.ranked[query][number * size : (number + 1) * size], number == 0)

    def all_batches(self) -> Iterator[Batch]:
        """Yield every batch."""
        for query, names in self.ranked.items():
            for number in range(-(-len(names) // self.settings.batch)):
                yield query, self.batch(query, number)

    def disputed(self, ratings: Sequence[Rating], judges: Sequence[str]) -> list[Batch]:
        """Return the documents that the judges rate differently, in batches; tier 2 also rates planted documents."""
        votes: dict[tuple[str, str], dict[str, bool | None]] = {}
        for rating in ratings:
            grade = None if rating.grade is None else rating.grade >= RELEVANT
            votes.setdefault((rating.query_id, rating.document_id), {})[rating.judge] = grade
        batches = []
        for query, ranked in self.ranked.items():
            asked = [(name, votes[query, name]) for name in ranked if (query, name) in votes]
            names = [name for name, given in asked if len(set(map(given.get, judges))) > 1 or None in given.values()]
            for start in range(0, len(names), self.settings.batch):
                batches.append((query, self._items(query, names[start : start + self.settings.batch], start == 0)))
        return batches

    def prompt(self, judge: Judge, query: str, items: Sequence[Item]) -> str:
        """Return the request for a batch; each judge sees its documents in another order."""
        documents = [item.text for item in self.order(judge, query, items)]
        name = f"{self.template}.{self.settings.language}"
        return render(name, query=self.queries[query], documents=documents)

    def order(self, judge: Judge, query: str, items: Sequence[Item]) -> list[Item]:
        """Return a batch in the order in which a judge sees it."""
        shuffled = list(items)
        random.Random(digest(self.settings.seed, judge.name, query, [item.name for item in items])).shuffle(shuffled)
        return shuffled

    def _items(self, query: str, names: Sequence[str], first: bool) -> list[Item]:
        anchors = self._anchors(query) if names and first and query in self.planted else ()
        return [*(Item(name, self.texts[name]) for name in names), *anchors]

    def _anchors(self, query: str) -> Iterable[Item]:
        draw, own = random.Random(digest(self.settings.seed, "anchor", query)), set(self.ranked[query])
        # A small collection may be pooled whole; then the documents of other questions are planted.
        texts = self.spare or [text for name, text in self.texts.items() if name not in own]
        if texts:
            unrelated, *others = [draw.choice(texts) for _ in range(1 + _LONG)]
            asked = self.queries[query]
            yield Item(f"{ANCHOR}irrelevant", unrelated)
            yield Item(f"{ANCHOR}long", "\n".join(others))
            yield Item(f"{ANCHOR}stuffed", f"{asked} {others[0]} {' '.join([asked] * (_STUFFED - 1))}")


def _by_depth(callers: Sequence[Caller], to_rate: TextsToRate) -> tuple[list[Rating], dict[str, int]]:
    """Rate by depth until ``stop_after`` batches are irrelevant; return votes, and the judged depth per question."""
    ratings: list[Rating] = []
    depths, barren = dict.fromkeys(to_rate.ranked, 0), dict.fromkeys(to_rate.ranked, 0)
    active, number, patience = list(to_rate.ranked), 0, to_rate.settings.stop_after
    while batches := [(query, items) for query in active if (items := to_rate.batch(query, number))]:
        rated = _rate(callers, to_rate, batches)
        ratings += rated
        real = (rating for rating in rated if not is_anchor(rating.document_id))
        fruitful = {rating.query_id for rating in real if (rating.grade or 0) >= RELEVANT}
        for query, items in batches:
            depths[query] += sum(not is_anchor(item.name) for item in items)
            barren[query] = 0 if query in fruitful else barren[query] + 1
        active = [query for query, _ in batches if patience is None or barren[query] < patience]
        number += 1
    return ratings, depths


def _rate(callers: Sequence[Caller], to_rate: TextsToRate, batches: Sequence[Batch]) -> list[Rating]:
    """Let every judge rate every batch, concurrently."""
    pairs = [(caller, batch) for batch in batches for caller in callers]
    asked = [(caller, batch, caller.pool.submit(_ask, caller, to_rate, *batch)) for caller, batch in pairs]
    ratings: list[Rating] = []
    for caller, (query, items), future in asked:
        try:
            ratings += future.result()
        except JudgeUnreachable:
            ratings += [Rating(caller.judge.name, query, item.name, None, "unreachable") for item in items]
    return ratings


def _ask(caller: Caller, to_rate: TextsToRate, query: str, items: Sequence[Item]) -> list[Rating]:
    """Ask a judge until every document has a grade, each time only for the missing ones, within ``attempts``."""
    judge, left, grades, reason, text = caller.judge, list(items), dict[str, int](), "", ""
    asked, ask = Counter[str](), caller.answers(to_rate.settings.attempts)
    while left:
        order, prompt = to_rate.order(judge, query, left), to_rate.prompt(judge, query, left)
        if (answer := ask(prompt, asked[prompt])) is None:
            break
        asked[prompt] += 1
        text = answer.text
        seen = {} if answer.refused else read_grades(answer.text, len(order))
        reason = "refused" if answer.refused else "invalid"
        grades |= {order[number].name: grade for number, grade in seen.items()}
        left = [item for item in left if item.name not in grades]
    failed = {item.name: (reason, text[:_SHOWN] if reason == "invalid" else "") for item in left}
    return [Rating(judge.name, query, name, grades.get(name), *failed.get(name, ())) for name, _ in items]
