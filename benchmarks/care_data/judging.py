"""Step 2: judges rate the pool in rounds by depth, then those of tier 2 what tier 1 disputes.

What is asked depends only on the configuration and on answers that are in the ledger, so that a run that was killed
anywhere asks the rest and ends as one that was not.
"""

import logging
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from care_data.config import Judge, Plan
from care_data.files import Rows, digest, read_rows, write_json, write_rows
from care_data.ledger import Ledger
from care_data.pool import CORPUS, POOL, QUERIES
from care_data.prompts import RELEVANT, judge_messages, read_grades
from care_data.source import shown
from care_data.wire import Caller, JudgeUnreachable, highest_price

logger = logging.getLogger(__name__)

JUDGEMENTS, LEDGER = "judgements.jsonl", "calls.sqlite"
_LONG = 3
"""Unrelated documents that make one long planted one."""
_STUFFED = 5
"""Repetitions of a question in a stuffed one."""


@dataclass(frozen=True, slots=True)
class Item:
    """One document of a call."""

    name: str
    """Document id, or ``anchor:`` and the kind of a planted one."""
    text: str


@dataclass(frozen=True, slots=True)
class Rating:
    """One vote."""

    judge: str
    query_id: str
    document_id: str
    grade: int | None
    """From 0 to 4 (D to S); None where the judge gave none."""
    reason: str = ""
    """Why there is no grade."""


def run_judge(plan: Plan, *, replay: bool = False) -> dict[str, Any]:
    """Ask the judges, and write their votes and what they cost."""
    settings, folder = plan.settings, plan.folder
    work = Work(plan)
    ledger = Ledger(folder / LEDGER, settings.judging.max_cost)
    callers = [Caller(judge, ledger, replay=replay) for judge in settings.judge]
    try:
        tiers = [[caller for caller in callers if caller.judge.tier == tier] for tier in (1, 2)]
        with Panel(tiers[0], work) as panel:
            ratings, depths = panel.rate_by_depth()
            down = panel.down
        if tiers[1]:
            with Panel(tiers[1], work) as panel:
                ratings += panel.rate(work.disputed(ratings, [caller.judge.name for caller in tiers[0]]))
                down |= panel.down
        bills = [asdict(bill) for bill in ledger.bills()]
    finally:
        for caller in callers:
            caller.close()
        ledger.close()
    if down and not settings.judging.allow_missing:
        raise JudgeUnreachable("\n".join(map(str, down.values())))
    report = {
        "pairs": len(work.pool),
        "judged": len({(each.query_id, each.document_id) for each in ratings if not is_anchor(each.document_id)}),
        "mean_depth": sum(depths.values()) / max(1, len(depths)),
        "cost": sum(bill["cost"] for bill in bills),
        "at_risk": sum(bill["at_risk"] for bill in bills),
        "bills": bills,
        "unreachable": sorted(down),
        "judges": [describe_judge(judge, ratings) for judge in settings.judge],
    }
    write_rows(folder / JUDGEMENTS, (asdict(each) for each in _sorted(ratings)))
    write_json(folder / "judge.json", report)
    return report


def estimate(plan: Plan) -> dict[str, Any]:
    """Return the calls and the highest cost of judging the whole pool, without a call."""
    work = Work(plan)
    judges: Rows = []
    for judge in plan.settings.judge:
        prices = [highest_price(judge, work.messages(judge, query, items)) for query, items in work.all_batches()]
        judges.append({"judge": judge.name, "tier": judge.tier, "calls": len(prices), "highest_cost": sum(prices)})
    return {
        "pairs": len(work.pool),
        "judges": judges,
        "highest_cost": sum(each["highest_cost"] for each in judges),
        "note": "tier 2 rates only what tier 1 disputes; stop_after and stored answers make it less",
    }


def is_anchor(document_id: str) -> bool:
    """Return whether a rated document was planted."""
    return document_id.startswith("anchor:")


def describe_judge(judge: Judge, ratings: Sequence[Rating]) -> dict[str, Any]:
    """Return how a judge did: votes, what is missing, and the planted documents that it rated relevant, by kind."""
    own = [each for each in ratings if each.judge == judge.name]
    votes = [each for each in own if not is_anchor(each.document_id)]
    planted: dict[str, list[bool]] = {}
    for each in own:
        if is_anchor(each.document_id) and each.grade is not None:
            planted.setdefault(each.document_id.partition(":")[2], []).append(each.grade >= RELEVANT)
    given = [each.grade for each in votes if each.grade is not None]
    reasons: dict[str, int] = {}
    for each in votes:
        if each.grade is None:
            reasons[each.reason] = reasons.get(each.reason, 0) + 1
    return {
        "judge": judge.name,
        "family": judge.family,
        "tier": judge.tier,
        "votes": len(given),
        "missing": reasons,
        "relevant_share": sum(grade >= RELEVANT for grade in given) / max(1, len(given)),
        "planted": {kind: {"rated": len(hits), "called_relevant": sum(hits)} for kind, hits in sorted(planted.items())},
    }


class Work:
    """The pool as batches, planted documents included."""

    def __init__(self, plan: Plan) -> None:
        self.settings, folder = plan.settings.judging, plan.folder
        self.pool = list(read_rows(folder / POOL, "care-data pool"))
        wanted = {row["document_id"] for row in self.pool}
        self._texts: dict[str, str] = {}
        # Long corpora: of the documents that nobody found, a few are enough to plant.
        spare: Rows = []
        for row in read_rows(folder / CORPUS, "care-data pool"):
            if row["id"] in wanted:
                self._texts[row["id"]] = shown(row)
            elif len(spare) < 1_000:
                spare.append(row)
        self.queries = {row["id"]: str(row["text"]) for row in read_rows(folder / QUERIES, "care-data pool")}
        self.ranked: dict[str, list[str]] = {}
        for row in self.pool:
            self.ranked.setdefault(row["query_id"], []).append(row["document_id"])
        self._spare = [shown(row) for row in spare]
        order = random.Random(f"anchors {self.settings.seed}")
        names = sorted(self.ranked)
        self._planted = set(order.sample(names, min(self.settings.anchors, len(names))))

    def batch(self, query: str, number: int) -> list[Item]:
        """Return one batch of a question's pool, from 0; empty below its end."""
        size = self.settings.batch
        names = self.ranked[query][number * size : (number + 1) * size]
        return self._items(names) + (self._anchors(query) if number == 0 and query in self._planted else [])

    def all_batches(self) -> Iterator[tuple[str, list[Item]]]:
        """Yield every batch."""
        for query in self.ranked:
            number = 0
            while items := self.batch(query, number):
                yield query, items
                number += 1

    def disputed(self, ratings: Sequence[Rating], judges: Sequence[str]) -> list[tuple[str, list[Item]]]:
        """Return what the judges do not all rate alike, in batches; planted documents are rated by tier 2, too."""
        votes: dict[tuple[str, str], dict[str, bool | None]] = {}
        for each in ratings:
            if not is_anchor(each.document_id):
                grade = None if each.grade is None else each.grade >= RELEVANT
                votes.setdefault((each.query_id, each.document_id), {})[each.judge] = grade
        left: dict[str, list[str]] = {}
        for (query, document), given in votes.items():
            if len({given.get(judge) for judge in judges}) > 1 or None in given.values():
                left.setdefault(query, []).append(document)
        batches = []
        for query in self.ranked:
            names = [name for name in self.ranked[query] if name in left.get(query, ())]
            for start in range(0, len(names), self.settings.batch):
                planted = self._anchors(query) if start == 0 and query in self._planted else []
                batches.append((query, self._items(names[start : start + self.settings.batch]) + planted))
        return batches

    def messages(self, judge: Judge, query: str, items: Sequence[Item]) -> list[dict[str, str]]:
        """Return the request for a batch; each judge sees its documents in another order."""
        texts = [item.text for item in self.order(judge, query, items)]
        return judge_messages(self.settings.language, self.queries[query], texts)

    def order(self, judge: Judge, query: str, items: Sequence[Item]) -> list[Item]:
        """Return a batch in the order in which a judge sees it."""
        shuffled = list(items)
        random.Random(digest(self.settings.seed, judge.name, query, [item.name for item in items])).shuffle(shuffled)
        return shuffled

    def _items(self, names: Iterable[str]) -> list[Item]:
        return [Item(name, self._texts[name]) for name in names]

    def _anchors(self, query: str) -> list[Item]:
        draw = random.Random(digest(self.settings.seed, "anchor", query))
        # A small collection may be pooled whole; then the documents of other questions are planted.
        own = set(self.ranked[query])
        texts = self._spare or [text for name, text in self._texts.items() if name not in own]
        if not texts:
            return []
        one, *others = [draw.choice(texts) for _ in range(1 + _LONG)]
        asked = self.queries[query]
        planted = {
            "irrelevant": one,
            "long": "\n".join(others),
            "stuffed": f"{asked} {others[0]} {' '.join([asked] * (_STUFFED - 1))}",
        }
        return [Item(f"anchor:{kind}", text) for kind, text in planted.items()]


class Panel:
    """The judges of one tier, asked concurrently."""

    def __init__(self, callers: Sequence[Caller], work: Work) -> None:
        self._callers, self._work = callers, work
        self.down: dict[str, JudgeUnreachable] = {}
        self._pools = {each.judge.name: ThreadPoolExecutor(each.judge.concurrency) for each in callers}

    def __enter__(self) -> "Panel":
        return self

    def __exit__(self, *_: object) -> None:
        # Calls that were sent are paid: they are waited for, and their answers stored.
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)

    def rate_by_depth(self) -> tuple[list[Rating], dict[str, int]]:
        """Rate batch after batch; stop a question where ranks bring nothing any more.

        Returns:
            The votes, and how many documents of each question were judged.
        """
        ratings: list[Rating] = []
        depths = dict.fromkeys(self._work.ranked, 0)
        barren = dict.fromkeys(self._work.ranked, 0)
        active, number, patience = list(self._work.ranked), 0, self._work.settings.stop_after
        while batches := [(query, items) for query in active if (items := self._work.batch(query, number))]:
            found = self.rate(batches)
            ratings += found
            fruitful = {
                each.query_id
                for each in found
                if not is_anchor(each.document_id) and each.grade is not None and each.grade >= RELEVANT
            }
            for query, items in batches:
                depths[query] += sum(not is_anchor(item.name) for item in items)
                barren[query] = 0 if query in fruitful else barren[query] + 1
            active = [query for query, _ in batches if patience is None or barren[query] < patience]
            number += 1
        return ratings, depths

    def rate(self, batches: Sequence[tuple[str, list[Item]]]) -> list[Rating]:
        """Let every judge rate every batch."""
        asked: list[tuple[Caller, str, list[Item], Future[list[Rating]]]] = []
        for query, items in batches:
            for caller in self._callers:
                future = self._pools[caller.judge.name].submit(self._ask, caller, query, items)
                asked.append((caller, query, items, future))
        ratings: list[Rating] = []
        for caller, query, items, future in asked:
            try:
                ratings += future.result()
            except JudgeUnreachable as error:
                if caller.judge.name not in self.down:
                    logger.warning("%s", error)
                self.down[caller.judge.name] = error
                ratings += [Rating(caller.judge.name, query, item.name, None, "unreachable") for item in items]
        return ratings

    def _ask(self, caller: Caller, query: str, items: Sequence[Item]) -> list[Rating]:
        """Ask until every document has a grade, for the missing ones alone, a bounded number of times."""
        judge, left, grades, reason = caller.judge, list(items), dict[str, int](), ""
        seen: Mapping[int, int]
        asked: dict[str, int] = {}
        for _ in range(self._work.settings.attempts):
            order = self._work.order(judge, query, left)
            messages = self._work.messages(judge, query, left)
            attempt = asked.setdefault(digest(messages), 0)
            asked[digest(messages)] += 1
            answer = caller.ask(messages, attempt)
            seen = {} if answer.refused else read_grades(answer.text, len(order))
            reason = "refused" if answer.refused else "invalid"
            grades |= {order[number].name: grade for number, grade in seen.items()}
            left = [item for item in left if item.name not in grades]
            if not left:
                break
        return [
            Rating(judge.name, query, item.name, grades.get(item.name), "" if item.name in grades else reason)
            for item in items
        ]


def _sorted(ratings: Sequence[Rating]) -> list[Rating]:
    return sorted(ratings, key=lambda each: (each.query_id, each.document_id, each.judge))
