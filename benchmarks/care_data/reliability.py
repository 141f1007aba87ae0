"""How far judges agree: all together, in pairs, with experts, by group and by length; and who stands apart."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np

from care_data.agreement import Estimate, Votes, cohen_kappa, fleiss_kappa, krippendorff_alpha, raw_agreement
from care_data.config import Plan
from care_data.files import read_rows
from care_data.pool import CORPUS, QUERIES
from care_data.prompts import GRADES, RELEVANT
from care_data.source import shown

Pair = tuple[str, str]
_STANDS_APART = 0.05
"""Gain of Krippendorff's alpha without a judge from which that judge is named."""
_SMALLEST_GROUP = 20
"""Pairs of a group whose agreement is reported."""


def agreement_report(
    plan: Plan,
    ballots: Mapping[Pair, Mapping[str, int | None]],
    experts: Mapping[Pair, Mapping[str, int]],
    judges: Sequence[str],
) -> dict[str, Any]:
    """Return the agreement of judges and experts."""
    questions = [query for query, _ in ballots]
    grades = table(list(ballots.values()), judges)
    report: dict[str, Any] = {
        "fleiss_kappa_relevant": _plain(fleiss_kappa(binary(grades), 2, questions)),
        "krippendorff_alpha_relevant": _plain(krippendorff_alpha(binary(grades), 2, "nominal", questions)),
        "krippendorff_alpha_grades": _plain(krippendorff_alpha(grades, len(GRADES), "ordinal", questions)),
        "pairs": pairs(binary(grades), judges, questions),
        "without": _without(binary(grades), judges),
        "experts": _with_experts(ballots, experts, judges),
    }
    whole = report["krippendorff_alpha_relevant"]["value"]
    gains = {name: alpha - whole for name, alpha in report["without"].items() if whole is not None}
    best = max(gains, key=lambda name: gains[name], default=None)
    report["outlier"] = best if best is not None and gains[best] > _STANDS_APART else None
    report["groups"] = _groups(plan, ballots, grades)
    return report


def pairs(votes: Votes, judges: Sequence[str], questions: Sequence[str]) -> list[dict[str, Any]]:
    """Return raw agreement and Cohen's kappa of every two judges."""
    return [
        {
            "judges": [judges[one], judges[other]],
            "agreement": _plain(raw_agreement(votes[:, [one, other]], 2, questions)),
            "cohen_kappa": _plain(cohen_kappa(votes[:, [one, other]], 2, questions)),
        }
        for one, other in combinations(range(len(judges)), 2)
    ]


def table(ballots: Sequence[Mapping[str, int | None]], judges: Sequence[str]) -> Votes:
    """Return the grades as a table, with -1 for a missing vote."""
    rows = [[-1 if (grade := votes.get(judge)) is None else grade for judge in judges] for votes in ballots]
    return np.asarray(rows, dtype=np.int64).reshape(len(rows), len(judges))


def binary(grades: Votes) -> Votes:
    """Return 1 for relevant, 0 for irrelevant, -1 for missing."""
    return np.where(grades < 0, -1, (grades >= RELEVANT).astype(np.int64))


def _without(votes: Votes, judges: Sequence[str]) -> dict[str, float]:
    """Return Krippendorff's alpha without each judge, where two others are left."""
    if len(judges) < 3:
        return {}
    alphas = {name: krippendorff_alpha(np.delete(votes, at, axis=1), 2).value for at, name in enumerate(judges)}
    return {name: alpha for name, alpha in alphas.items() if not np.isnan(alpha)}


def _with_experts(
    ballots: Mapping[Pair, Mapping[str, int | None]],
    experts: Mapping[Pair, Mapping[str, int]],
    judges: Sequence[str],
) -> dict[str, Any]:
    """Compare each judge with each expert, and the experts with each other, on what experts rated."""
    rated = [pair for pair in experts if pair in ballots]
    names = sorted({name for pair in rated for name in experts[pair]})
    if not names:
        return {}
    people = binary(table([experts[pair] for pair in rated], names))
    machines = binary(table([ballots[pair] for pair in rated], judges))
    questions = [query for query, _ in rated]
    both = [
        {
            "judge": judge,
            "expert": expert,
            "agreement": _plain(raw_agreement(np.column_stack([machines[:, j], people[:, e]]), 2, questions)),
            "cohen_kappa": _plain(cohen_kappa(np.column_stack([machines[:, j], people[:, e]]), 2, questions)),
        }
        for j, judge in enumerate(judges)
        for e, expert in enumerate(names)
    ]
    return {"pairs": len(rated), "experts": names, "among_experts": pairs(people, names, questions), "judges": both}


def _groups(plan: Plan, ballots: Mapping[Pair, Mapping[str, int | None]], grades: Votes) -> dict[str, Any]:
    """Return alpha by the group of the document or of the question, and by thirds of the document's length."""
    key = plan.settings.vote.group_by
    wanted = {document for _, document in ballots}
    rows = {row["id"]: row for row in read_rows(plan.folder / CORPUS) if row["id"] in wanted}
    asked = {row["id"]: row for row in read_rows(plan.folder / QUERIES)}
    lengths = np.array([len(shown(rows[document])) for _, document in ballots])
    thirds = np.searchsorted(np.quantile(lengths, [1 / 3, 2 / 3]), lengths)
    of_length = [("short", "middle", "long")[third] for third in thirds]
    found = {"length": _by(of_length, grades)}
    if key is not None:
        names = [str(rows[doc]["metadata"].get(key) or asked[query].get(key) or "") for query, doc in ballots]
        found[key] = _by(names, grades)
    return found


def _by(names: Sequence[str], grades: Votes) -> dict[str, Any]:
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        if name:
            places.setdefault(name, []).append(place)
    return {
        name: _plain(krippendorff_alpha(binary(grades[rows]), 2))
        for name, rows in sorted(places.items())
        if len(rows) >= _SMALLEST_GROUP
    }


def _plain(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as JSON values; None for what is not defined."""
    values = asdict(estimate)
    interval = values.pop("interval")
    flat = {"value": values["value"], "low": interval["low"], "high": interval["high"]}
    return {name: None if np.isnan(value) else float(value) for name, value in flat.items()} | {
        "items": values["items"]
    }
