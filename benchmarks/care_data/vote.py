"""Step 3: turn votes into labels. Disputed pairs keep that label; the paper discards them [B]."""

import logging
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from care_data.agreement import agreement_report
from care_data.config import Config, Rule
from care_data.estimates import krippendorff_alpha
from care_data.exchange import read_judgements
from care_data.files import LABELS, read_json, read_rows, write_json, write_rows
from care_data.judging import JUDGEMENTS, PLANTED, is_anchor
from care_data.pool import POOL, contributions
from care_data.prompts import RELEVANT
from care_data.sheets import read_opinions
from care_qdrant.errors import InputError, counted

logger = logging.getLogger(__name__)

_FEWEST_FOUND = 10  # documents that another judge rates relevant, from which a judge fails that rates none so
_FEWEST_PLANTED = 5  # planted documents of one kind from which a judge can fail by that kind alone

Label = Literal["relevant", "irrelevant", "disputed", "missing"]
Pair = tuple[str, str]
Ballots = dict[Pair, dict[str, int | None]]  # question and document → judge → grade, None for a vote that is missing


def run_vote(config: Config, _: bool = False) -> dict[str, Any]:
    """Label the pool, and report the agreement of the judges."""
    settings, folder = config.settings.vote, config.folder
    pool = list(read_rows(folder / POOL, config.command("pool")))
    tiers = {judge.name: judge.tier for judge in config.settings.judge if judge.name not in settings.exclude}
    tiers |= {judge.name: 1 for judge in settings.imported if judge.name not in settings.exclude}
    if not tiers:
        raise InputError("no judge is left to vote: [[judge]], vote.imported and vote.exclude determine the voters")
    ballots = _ballots(config, pool, tiers)
    _require_votes(ballots, [name for name, tier in tiers.items() if tier == 1], config)
    _require_judgement(config, tiers)
    experts = read_opinions(config)
    if strange := experts.keys() - {(row["query_id"], row["document_id"]) for row in pool}:
        logger.warning("experts rate %s that the pool does not hold; left out", counted(len(strange), "pair"))
    weights = _weights(ballots, experts, list(tiers)) if settings.rule == "weighted" else {}
    labels = []
    for (query, document), votes in ballots.items():
        given, said = [grade for grade in votes.values() if grade is not None], experts.get((query, document), {})
        label, median = (
            label_of(votes, tiers, settings.rule, weights, said),
            statistics.median(given) if given else None,
        )
        row: dict[str, object] = {"query_id": query, "document_id": document, "label": label, "grade": median}
        labels.append(row | {"votes": votes, "experts": said})
    qrels: dict[str, dict[str, int]] = {}
    for row in labels:
        if row["label"] in ("relevant", "irrelevant"):
            qrels.setdefault(str(row["query_id"]), {})[str(row["document_id"])] = int(row["label"] == "relevant")
    answered = {query: grades for query, grades in qrels.items() if any(grades.values())}
    families = {entry["retriever"]: entry["family"] for entry in read_json(folder / "pool.json")["contributions"]}
    relevant = sum(row["label"] == "relevant" for row in labels)
    report = {
        "rule": settings.rule,
        "labels": dict(Counter(str(row["label"]) for row in labels)),
        "questions_with_a_positive": len(answered),
        "relevant_per_question": relevant / max(1, len({query for query, _ in ballots})),
        "weights": weights,
        "contributions": contributions(pool, families, answered),
        "agreement": agreement_report(config, ballots, experts, list(tiers)),
    }
    write_rows(folder / LABELS, labels)
    write_json(folder / "vote.json", report)
    return report


def label_of(
    votes: Mapping[str, int | None],
    tiers: Mapping[str, int],
    rule: Rule,
    weights: Mapping[str, float],
    experts: Mapping[str, int],
) -> Label:
    """Return the label of one pair from the grades by judges and experts.

    Experts who agree decide. Otherwise the votes of the highest tier that was asked decide, since tier 2 is asked only
    about what tier 1 disputes; weighted votes count in all tiers.
    """
    opinions = {grade >= RELEVANT for grade in experts.values()}
    if opinions:
        return "disputed" if len(opinions) > 1 else _side(1 if opinions.pop() else -1)
    given = {judge: grade >= RELEVANT for judge, grade in votes.items() if grade is not None}
    if not given:
        return "missing"
    if rule == "weighted":
        return _side(sum(weights[judge] * (1 if yes else -1) for judge, yes in given.items()))
    top = max(tiers[judge] for judge in given)
    votes_of_top = [yes for judge, yes in given.items() if tiers[judge] == top]
    balance = sum(1 if yes else -1 for yes in votes_of_top)
    if rule == "majority":
        return _side(balance)
    if len(set(votes_of_top)) > 1:
        return "disputed"
    return _side(balance) if len(votes_of_top) == sum(tier == top for tier in tiers.values()) else "missing"


def label_without_experts(votes: Mapping[str, int | None], tiers: Mapping[str, int], rule: Rule) -> Label:
    """Return the label of a pair without expert grades; the weighted rule, which needs them, becomes unanimous."""
    return label_of(votes, tiers, "unanimous" if rule == "weighted" else rule, {}, {})


def _side(balance: float) -> Label:
    return "disputed" if balance == 0 else "relevant" if balance > 0 else "irrelevant"


def _ballots(config: Config, pool: Sequence[Mapping[str, Any]], tiers: Mapping[str, int]) -> Ballots:
    """Return the votes on the pairs of the pool that were sent to a judge, in the order of the pool."""
    ballots: Ballots = {}
    if config.settings.judge:
        for row in read_rows(config.folder / JUDGEMENTS, config.command("judge")):
            if row["judge"] in tiers and not is_anchor(row["document_id"]):
                ballots.setdefault((row["query_id"], row["document_id"]), {})[row["judge"]] = row["grade"]
    for source in config.settings.vote.imported:
        if source.name in tiers:
            for pair, grade in read_judgements(config.at(source.path), source.relevant_from).items():
                ballots.setdefault(pair, {})[source.name] = grade
    pairs = ((row["query_id"], row["document_id"]) for row in pool)
    return {pair: ballots[pair] for pair in pairs if pair in ballots}


def _require_votes(ballots: Ballots, judges: Sequence[str], config: Config) -> None:
    most = config.settings.vote.max_missing
    if not ballots:
        raise InputError(f"no pair of the pool has a vote; run {config.command('judge')} first")
    missing = {judge: sum(votes.get(judge) is None for votes in ballots.values()) for judge in judges}
    share = sum(missing.values()) / (len(ballots) * max(1, len(judges)))
    if share > most:
        shares = ", ".join(f"{judge}: {count:,} of {len(ballots):,}" for judge, count in missing.items() if count)
        raise InputError(
            f"{100 * share:.0f} % of the votes are missing ({shares}), more than vote.max_missing = {most:g}; ask "
            f"those judges again ({config.command('judge')} --again NAME), leave them out with vote.exclude, or raise "
            "the limit"
        )


def _require_judgement(config: Config, tiers: Mapping[str, int]) -> None:
    """Refuse a judge that calls a kind of planted documents relevant, or everything, or nothing."""
    report = read_json(config.folder / "judge.json")["judges"] if config.settings.judge else []
    judges = [judge for judge in report if judge["judge"] in tiers]
    least = min((judge["relevant_share"] for judge in judges), default=0.0)
    # Tier 2 rates what tier 1 disputes, of which nothing may be relevant.
    found = max((judge["votes"] * judge["relevant_share"] for judge in judges if judge["tier"] == 1), default=0)
    most = config.settings.vote.max_failed_anchors
    for judge in judges:
        rated, wrong = (sum(kind[key] for kind in judge["planted"].values()) for key in ("rated", "called_relevant"))
        fault, remedy = "", ""
        if (rated and wrong / rated > most) or any(_failed(kind, most) for kind in judge["planted"].values()):
            kinds = (
                f"{kind['called_relevant']} of {kind['rated']} {PLANTED[name]}"
                for name, kind in judge["planted"].items()
            )
            fault = f"rates {wrong} of {rated} planted irrelevant documents relevant ({', '.join(kinds)})"
            remedy = ", or raise vote.max_failed_anchors"
        elif judge["votes"] >= 50 and judge["relevant_share"] == 1 and least < 0.9:
            fault = f"rates all of its {judge['votes']:,} documents relevant"
        elif judge["votes"] >= 50 and not judge["relevant_share"] and judge["tier"] == 1 and found >= _FEWEST_FOUND:
            fault = f"rates none of its {judge['votes']:,} documents relevant, of which another finds {round(found):,}"
        if fault:
            raise InputError(
                f"judge {judge['judge']!r} {fault}: its votes say nothing; leave it out with "
                f'vote.exclude = ["{judge["judge"]}"]{remedy}'
            )


def _failed(kind: Mapping[str, int], most: float) -> bool:
    """Return whether a judge calls too many planted documents of one kind relevant."""
    return kind["rated"] >= _FEWEST_PLANTED and kind["called_relevant"] / kind["rated"] > most


def _weights(ballots: Ballots, experts: Mapping[Pair, Mapping[str, int]], judges: Sequence[str]) -> dict[str, float]:
    """Return Krippendorff's alpha of each judge with the experts' majority, at least 0."""
    sums = {pair: sum(1 if grade >= RELEVANT else -1 for grade in given.values()) for pair, given in experts.items()}
    truth = {pair: int(balance > 0) for pair, balance in sums.items() if balance and pair in ballots}
    if not truth:
        raise InputError('vote.rule = "weighted" needs expert grades of the pool (care data review)')
    weights = {}
    for judge in judges:
        given = ((ballots[pair].get(judge), right) for pair, right in truth.items())
        rows = [[int(grade >= RELEVANT), right] for grade, right in given if grade is not None]
        alpha = krippendorff_alpha(np.asarray(rows, dtype=np.int64).reshape(-1, 2), 2).value
        weights[judge] = float(np.nan_to_num(max(0.0, alpha)))
    if not any(weights.values()):
        raise InputError("no judge agrees with the experts better than chance; there is nothing to weigh")
    return weights
