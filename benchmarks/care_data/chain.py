"""The steps of a configuration in order; a step whose inputs are unchanged since it finished is not done again."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from care_data.build import BENCHMARK, build_inputs, run_build
from care_data.config import Plan
from care_data.files import digest, file_digest, read_json, write_json
from care_data.judging import JUDGEMENTS, run_judge
from care_data.pool import CORPUS, POOL, pool_inputs, run_pool
from care_data.vote import LABELS, run_vote

logger = logging.getLogger(__name__)

_DONE = "done.json"
Report = dict[str, Any]


def run_chain(plan: Plan, *, replay: bool = False) -> dict[str, Report]:
    """Do the steps that are not done yet, and return what each of them reported."""
    return {step: run_step(plan, step, replay=replay) for step in STEPS if step != "judge" or plan.settings.judge}


def run_step(plan: Plan, step: str, *, replay: bool = False) -> Report:
    """Do one step, unless it is done: then return the report that it left."""
    folder = plan.folder
    state: dict[str, Any] = read_json(folder / _DONE) if (folder / _DONE).is_file() else {}
    work, inputs, outputs = STEPS[step]
    now = inputs(plan)
    files = {name: file_digest(folder / name) for name in outputs}
    before = state.get(step)
    if before and before["inputs"] == now and before["outputs"] == files and all(files.values()):
        logger.info("%s: done already", step)
        report: Report = before["report"]
        return report
    report = work(plan, replay)
    files = {name: file_digest(folder / name) for name in outputs}
    state[step] = {"inputs": now, "outputs": files, "report": report}
    write_json(folder / _DONE, state)
    return report


def _judge_inputs(plan: Plan) -> str:
    judging = {key: value for key, value in asdict(plan.settings.judging).items() if key != "max_cost"}
    judges = [asdict(judge) for judge in plan.settings.judge]
    return digest(judging, judges, file_digest(plan.folder / POOL), file_digest(plan.folder / CORPUS))


def _vote_inputs(plan: Plan) -> str:
    vote = plan.settings.vote
    files = [plan.folder / JUDGEMENTS, plan.folder / POOL]
    files += [plan.at(path) for path in (*vote.sheets, *(each.path for each in vote.imported))]
    return digest(asdict(vote), [judge.name for judge in plan.settings.judge], list(map(file_digest, files)))


def _build_inputs(plan: Plan) -> str:
    files = [file_digest(plan.folder / name) for name in (LABELS, "vote.json", "pool.json", "judge.json")]
    source = plan.settings.source.origin, plan.settings.source.license
    return digest(asdict(plan.settings.build), plan.settings.name, source, files, build_inputs(plan))


STEPS: Mapping[str, tuple[Callable[[Plan, bool], Report], Callable[[Plan], str], tuple[str, ...]]] = {
    "pool": (lambda plan, _: run_pool(plan), pool_inputs, (POOL, CORPUS, "queries.jsonl", "pool.json")),
    "judge": (lambda plan, replay: run_judge(plan, replay=replay), _judge_inputs, (JUDGEMENTS, "judge.json")),
    "vote": (lambda plan, _: run_vote(plan), _vote_inputs, (LABELS, "vote.json")),
    "build": (
        lambda plan, _: run_build(plan),
        _build_inputs,
        tuple(f"{BENCHMARK}/{name}" for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "README.md")),
    ),
}
"""Step → its work, the digest of its inputs, and its files."""
