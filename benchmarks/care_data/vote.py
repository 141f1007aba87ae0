"""Step 3: votes to labels. A disputed pair stays a disputed pair; the paper throws it away [B]."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from care_data.agreement import cohen_kappa
from care_data.config import Plan, Rule
from care_data.exchange import read_judgements
from care_data.files import read_json, read_rows, write_json, write_rows
from care_data.judging import JUDGEMENTS, is_anchor
from care_data.pool import POOL, contributions
from care_data.prompts import RELEVANT
from care_data.reliability import agreement_report
from care_data.sheets import Opinion, read_opinions
from care_qdrant import InputError

LABELS = "labels.jsonl"
Label = Literal["relevant", "irrelevant", "disputed", "missing"]
Pair = tuple[str, str]
Ballots = dict[Pair, dict[str, int | None]]
"""Question and document → judge → grade, None for a vote that is missing."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """One pair with its label."""

    query_id: str
    document_id: str
    label: Label
    grade: float | None
    """Median of the votes, from 0 to 4."""
    votes: Mapping[str, int | None]
    experts: Mapping[str, int]


def run_vote(plan: Plan) -> dict[str, Any]:
    """Label the pool, and report how far the judges agree."""
    settings, folder = plan.settings.vote, plan.folder
    pool = list(read_rows(folder / POOL, "care-data pool"))
    tiers = {judge.name: judge.tier for judge in plan.settings.judge if judge.name not in settings.exclude}
    tiers |= {each.name: 1 for each in settings.imported if each.name not in settings.exclude}
    if not tiers:
        raise InputError("no judge is left to vote: [[judge]], vote.imported and vote.exclude decide who does")
    ballots = _ballots(plan, pool, tiers)
    _require_votes(ballots, [name for name, tier in tiers.items() if tier == 1], settings.max_missing)
    _require_judgement(plan, tiers)
    opinions = read_opinions([plan.at(sheet) for sheet in settings.sheets])
    experts = _experts(opinions)
    weights = _weights(ballots, experts, list(tiers)) if settings.rule == "weighted" else {}
    labels = [
        Labelled(
            query,
            document,
            label_of(votes, tiers, settings.rule, weights, experts.get((query, document), {})),
            _median([grade for grade in votes.values() if grade is not None]),
            votes,
            experts.get((query, document), {}),
        )
        for (query, document), votes in ballots.items()
    ]
    relevant = {(each.query_id, each.document_id) for each in labels if each.label == "relevant"}
    before = read_json(folder / "pool.json")["contributions"]
    families = {each["retriever"]: each["family"] for each in before}
    report = {
        "rule": settings.rule,
        "labels": dict(Counter(each.label for each in labels)),
        "questions_with_a_positive": len({query for query, _ in relevant}),
        "relevant_per_question": len(relevant) / max(1, len({query for query, _ in ballots})),
        "weights": weights,
        "contributions": [asdict(each) for each in contributions(pool, families, relevant)],
        "agreement": agreement_report(plan, ballots, experts, list(tiers)),
    }
    write_rows(folder / LABELS, (asdict(each) for each in labels))
    write_json(folder / "vote.json", report)
    return report


def label_of(
    votes: Mapping[str, int | None],
    tiers: Mapping[str, int],
    rule: Rule,
    weights: Mapping[str, float],
    experts: Mapping[str, int],
) -> Label:
    """Return the label of one pair.

    Experts who agree decide. Else the votes of the highest tier that was asked do, since tier 2 is asked only what
    tier 1 disputes; weighted votes count in all tiers.

    Args:
        votes: Grades by judge.
        tiers: Tier by judge.
        rule: How votes of one tier are counted.
        weights: Weight by judge, for ``weighted``.
        experts: Grades by expert.
    """
    opinions = {grade >= RELEVANT for grade in experts.values()}
    if len(opinions) == 1:
        return "relevant" if opinions.pop() else "irrelevant"
    if opinions:
        return "disputed"
    given = {judge: grade >= RELEVANT for judge, grade in votes.items() if grade is not None}
    if not given:
        return "missing"
    if rule == "weighted":
        return _side(sum(weights[judge] * (1 if yes else -1) for judge, yes in given.items()))
    top = max(tiers[judge] for judge in given)
    counted = [yes for judge, yes in given.items() if tiers[judge] == top]
    if rule == "majority":
        return _side(sum(1 if yes else -1 for yes in counted))
    asked = sum(tiers[judge] == top for judge in tiers)
    if len(counted) < asked:
        return "missing" if len(set(counted)) == 1 else "disputed"
    return _side(1 if all(counted) else -1) if len(set(counted)) == 1 else "disputed"


def _side(balance: float) -> Label:
    return "disputed" if balance == 0 else "relevant" if balance > 0 else "irrelevant"


def _median(grades: Sequence[int]) -> float | None:
    return statistics.median(grades) if grades else None


def _ballots(plan: Plan, pool: Sequence[Mapping[str, Any]], tiers: Mapping[str, int]) -> Ballots:
    """Return the votes on the pairs of the pool that some judge was asked for, in the order of the pool."""
    found: Ballots = {}
    if plan.settings.judge:
        for row in read_rows(plan.folder / JUDGEMENTS, "care-data judge"):
            if row["judge"] in tiers and not is_anchor(row["document_id"]):
                found.setdefault((row["query_id"], row["document_id"]), {})[row["judge"]] = row["grade"]
    for source in plan.settings.vote.imported:
        if source.name in tiers:
            for pair, grade in read_judgements(plan.at(source.path), source.relevant_from).items():
                found.setdefault(pair, {})[source.name] = grade
    pairs = ((row["query_id"], row["document_id"]) for row in pool)
    return {pair: found[pair] for pair in pairs if pair in found}


def _require_votes(ballots: Ballots, judges: Sequence[str], most: float) -> None:
    if not ballots:
        raise InputError("no pair of the pool has a vote; run care-data judge first")
    missing = {judge: sum(votes.get(judge) is None for votes in ballots.values()) for judge in judges}
    share = sum(missing.values()) / (len(ballots) * max(1, len(judges)))
    if share > most:
        each = ", ".join(f"{judge}: {count:,} of {len(ballots):,}" for judge, count in missing.items() if count)
        raise InputError(
            f"{100 * share:.0f} % of the votes are missing ({each}), more than vote.max_missing = {most:g}; ask those "
            "judges again, leave them out with vote.exclude, or raise the limit"
        )


def _require_judgement(plan: Plan, tiers: Mapping[str, int]) -> None:
    """Refuse a judge that calls what was planted relevant, or everything."""
    path = plan.folder / "judge.json"
    judges = read_json(path)["judges"] if plan.settings.judge and path.is_file() else []
    shares = {each["judge"]: each["relevant_share"] for each in judges}
    for each in judges:
        if each["judge"] not in tiers:
            continue
        rated = sum(kind["rated"] for kind in each["planted"].values())
        wrong = sum(kind["called_relevant"] for kind in each["planted"].values())
        if rated and wrong / rated > plan.settings.vote.max_failed_anchors:
            found = f"rates {wrong} of {rated} planted irrelevant documents relevant"
        elif each["votes"] >= 50 and each["relevant_share"] == 1 and min(shares.values()) < 0.9:
            found = f"rates all of its {each['votes']:,} documents relevant"
        else:
            continue
        raise InputError(
            f"judge {each['judge']!r} {found}: its votes say nothing; leave it out with "
            f'vote.exclude = ["{each["judge"]}"], or raise vote.max_failed_anchors'
        )


def _experts(opinions: Sequence[Opinion]) -> dict[Pair, dict[str, int]]:
    found: dict[Pair, dict[str, int]] = {}
    for each in opinions:
        found.setdefault((each.query_id, each.document_id), {})[each.expert] = each.grade
    return found


def _weights(ballots: Ballots, experts: Mapping[Pair, Mapping[str, int]], judges: Sequence[str]) -> dict[str, float]:
    """Return Cohen's kappa of each judge with the experts' majority, at least 0."""
    truth = {}
    for pair, given in experts.items():
        balance = sum(1 if grade >= RELEVANT else -1 for grade in given.values())
        if balance and pair in ballots:
            truth[pair] = int(balance > 0)
    if not truth:
        raise InputError(
            'vote.rule = "weighted" needs what experts say of the pool: fill in a sheet (care-data review)'
        )
    weights = {}
    for judge in judges:
        rows = [
            [int(grade >= RELEVANT), right]
            for pair, right in truth.items()
            if (grade := ballots[pair].get(judge)) is not None
        ]
        kappa = cohen_kappa(np.asarray(rows, dtype=np.int64).reshape(-1, 2), 2).value
        weights[judge] = float(np.nan_to_num(max(0.0, kappa)))
    if not any(weights.values()):
        raise InputError("no judge agrees with the experts better than chance; there is nothing to weigh")
    return weights
