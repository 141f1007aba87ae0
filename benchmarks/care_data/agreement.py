"""Agreement of judges: all together, in pairs, with experts, by group and by length; and the outlier among them."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from care_data.config import Config
from care_data.estimates import Votes, krippendorff_alpha, raw_agreement
from care_data.files import read_rows
from care_data.pool import CORPUS, QUERIES
from care_data.prompts import GRADES, RELEVANT
from care_data.source import shown

Pair = tuple[str, str]
_STANDS_APART = 0.05  # gain of Krippendorff's alpha without a judge from which that judge is named
_SMALLEST_GROUP = 20  # pairs of a group whose agreement is reported


def agreement_report(
    config: Config,
    ballots: Mapping[Pair, Mapping[str, int | None]],
    experts: Mapping[Pair, Mapping[str, int]],
    judges: Sequence[str],
) -> dict[str, Any]:
    """Return the agreement of judges and experts: all together, in pairs, by group and by length; and the outlier."""
    questions = [query for query, _ in ballots]
    grades = table(list(ballots.values()), judges)
    votes = binary(grades)
    whole = krippendorff_alpha(votes, 2, "nominal", questions)
    others = {name: np.delete(votes, at, axis=1) for at, name in enumerate(judges) if len(judges) > 2}
    alphas = {name: krippendorff_alpha(rest, 2).value for name, rest in others.items()}
    without = {name: alpha for name, alpha in alphas.items() if not np.isnan(alpha)}
    best = max(without, key=lambda name: without[name], default="")
    return {
        "krippendorff_alpha_relevant": whole.plain(),
        "krippendorff_alpha_grades": krippendorff_alpha(grades, len(GRADES), "ordinal", questions).plain(),
        "pairs": pairs(votes, judges, questions),
        "without": without,
        "experts": _with_experts(ballots, experts, judges),
        "outlier": best if best and without[best] - whole.value > _STANDS_APART else None,
        "groups": _groups(config, ballots, votes),
    }


def pairs(votes: Votes, raters: Sequence[str], questions: Sequence[str]) -> list[dict[str, Any]]:
    """Return raw agreement and Krippendorff's alpha of every two raters."""
    couples = ((votes[:, [i, j]], [raters[i], raters[j]]) for i, j in combinations(range(len(raters)), 2))
    return [{"raters": names, **_both(columns, questions)} for columns, names in couples]


def table(ballots: Sequence[Mapping[str, int | None]], judges: Sequence[str]) -> Votes:
    """Return the grades as a table, with -1 for a missing vote."""
    rows = [[-1 if (grade := votes.get(judge)) is None else grade for judge in judges] for votes in ballots]
    return np.asarray(rows, dtype=np.int64).reshape(len(rows), len(judges))


def binary(grades: Votes) -> Votes:
    """Return 1 for relevant, 0 for irrelevant, -1 for missing."""
    return np.where(grades < 0, -1, (grades >= RELEVANT).astype(np.int64))


def _both(votes: Votes, questions: Sequence[str]) -> dict[str, Any]:
    return {
        "agreement": raw_agreement(votes, 2, questions).plain(),
        "alpha": krippendorff_alpha(votes, 2, "nominal", questions).plain(),
    }


def _with_experts(
    ballots: Mapping[Pair, Mapping[str, int | None]],
    experts: Mapping[Pair, Mapping[str, int]],
    judges: Sequence[str],
) -> dict[str, Any]:
    """Compare each judge with each expert, and the experts with each other, on the pairs that experts rated."""
    rated = [pair for pair in experts if pair in ballots]
    names = sorted({name for pair in rated for name in experts[pair]})
    if not names:
        return {}
    people = binary(table([experts[pair] for pair in rated], names))
    machines = binary(table([ballots[pair] for pair in rated], judges))
    questions = [query for query, _ in rated]
    compared = [
        {"judge": judge, "expert": expert, **_both(np.column_stack([machines[:, j], people[:, e]]), questions)}
        for j, judge in enumerate(judges)
        for e, expert in enumerate(names)
    ]
    return {"pairs": len(rated), "experts": names, "among_experts": pairs(people, names, questions), "judges": compared}


def _groups(config: Config, ballots: Mapping[Pair, object], votes: Votes) -> dict[str, Any]:
    """Return alpha by the group of the document or of the question, and by thirds of the document's length."""
    key, judged = config.settings.vote.group_by, {document for _, document in ballots}
    rows = {row["id"]: row for row in read_rows(config.folder / CORPUS) if row["id"] in judged}
    asked = {row["id"]: row for row in read_rows(config.folder / QUERIES)}
    lengths = np.array([len(shown(rows[document])) for _, document in ballots])
    thirds = np.searchsorted(np.quantile(lengths, [1 / 3, 2 / 3]), lengths)
    named = {"length": [("short", "middle", "long")[third] for third in thirds]}
    if key is not None:
        named[key] = [str(rows[doc]["metadata"].get(key) or asked[query].get(key) or "") for query, doc in ballots]
    alphas: dict[str, Any] = {}
    for kind, names in named.items():
        groups = {name: [at for at, group in enumerate(names) if group == name] for name in sorted({*names} - {""})}
        large = {name: places for name, places in groups.items() if len(places) >= _SMALLEST_GROUP}
        alphas[kind] = {name: krippendorff_alpha(votes[places], 2).plain() for name, places in large.items()}
    return alphas
