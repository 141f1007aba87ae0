"""The steps of a configuration in order; a finished step whose inputs are unchanged is not repeated."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from care_data.build import BENCHMARK, run_build
from care_data.config import Config
from care_data.files import LABELS, digest, file_digest, read_json, write_json
from care_data.judging import JUDGEMENTS, LEDGER, run_judge
from care_data.pool import CORPUS, POOL, QUERIES, run_pool
from care_data.sheets import OPINIONS
from care_data.sts import PAIRS, run_sts
from care_data.vote import run_vote
from care_qdrant.console.outputs import require_own
from care_qdrant.errors import InputError

logger = logging.getLogger(__name__)

_DONE = "done.json"
_WRITTEN = re.compile(rb'\{(\}|\s*"\w+": \{\s*"inputs": )')
Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its work, the configuration tables and the files that determine its result, and the files it writes."""

    work: Callable[[Config, bool], Report]
    tables: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    named: Callable[[Config], Iterable[str | None]] = lambda _: ()  # files that the configuration names

    def digest(self, config: Config) -> str:
        """Return the digest of everything that determines the result, except the collection, which is read once."""
        settings = asdict(config.settings)
        settings["judging"].pop("max_cost")
        files: list[Path] = [config.folder / name for name in self.inputs]
        files += [config.at(name) for name in self.named(config) if name]
        return digest([settings[name] for name in self.tables], list(map(file_digest, files)))


def run_chain(config: Config, *, replay: bool = False) -> dict[str, Report]:
    """Run the steps that are not done yet, and return the report of every step."""
    return {name: run_step(config, name, replay=replay) for name in _enabled(config)}


def _enabled(config: Config) -> list[str]:
    """Return the names of the steps that a configuration has."""
    has = {"judge": bool(config.settings.judge), "sts": config.settings.sts is not None}
    return [name for name in STEPS if has.get(name, True)]


def require_done(config: Config, inputs: Iterable[str]) -> None:
    """Refuse to read files of steps that have not run since their settings or their own inputs changed."""
    read, state = {*inputs}, _state(config)
    for name in _enabled(config):
        if read.intersection(STEPS[name].outputs) and not _is_done(config, name, state):
            raise InputError(
                f"{config.file}: step {name} has not run, or its settings or files have changed since; run "
                f"{config.command(name)} first, or all steps: {config.command('run')}"
            )


def _state(config: Config) -> dict[str, Any]:
    state: dict[str, Any] = read_json(config.folder / _DONE) if (config.folder / _DONE).is_file() else {}
    return state


def _outputs(config: Config, step: "Step") -> dict[str, str]:
    return {file: file_digest(config.folder / file) for file in step.outputs}


def _is_done(config: Config, name: str, state: Mapping[str, Any]) -> bool:
    before, step = state.get(name), STEPS[name]
    if not before or before["inputs"] != step.digest(config):
        return False
    files = _outputs(config, step)
    return bool(before["outputs"] == files and all(files.values()))


def run_step(config: Config, name: str, *, replay: bool = False) -> Report:
    """Run one step, or return its stored report if it is done already."""
    folder, step = config.folder, STEPS[name]
    written = {file for other in STEPS.values() for file in other.outputs} | {JUDGEMENTS, OPINIONS, LEDGER}
    require_own(folder, _DONE, _WRITTEN, sorted(written))
    if not (folder / _DONE).is_file():
        write_json(folder / _DONE, {})  # marks the files in the folder as written by this program
    require_done(config, step.inputs)
    state, now = _state(config), step.digest(config)
    if not config.again and _is_done(config, name, state):
        logger.info("%s: done already", name)
        report: Report = state[name]["report"]
        return report
    report = step.work(config, replay)
    write_json(folder / _DONE, state | {name: {"inputs": now, "outputs": _outputs(config, step), "report": report}})
    return report


def _pool_files(config: Config) -> Iterable[str | None]:
    return [config.settings.source.queries, *(retriever.path for retriever in config.settings.retriever)]


def _vote_files(config: Config) -> Iterable[str | None]:
    return [*config.settings.vote.sheets, *(judge.path for judge in config.settings.vote.imported)]


def _sts_files(config: Config) -> Iterable[str | None]:
    return [config.settings.source.queries, config.settings.sts.dictionary if config.settings.sts else None]


_BUILT = tuple(f"{BENCHMARK}/{name}" for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "README.md"))
_POOLED = (POOL, CORPUS, QUERIES)
_DECIDES = (LABELS, "vote.json", "pool.json", "judge.json", PAIRS)
STEPS: Mapping[str, Step] = {
    "pool": Step(run_pool, ("source", "pool", "retriever"), (), (*_POOLED, "pool.json"), _pool_files),
    "judge": Step(run_judge, ("judging", "judge"), _POOLED, (JUDGEMENTS, "judge.json")),
    "vote": Step(
        run_vote,
        ("vote", "judge"),
        (JUDGEMENTS, "judge.json", *_POOLED, "pool.json", OPINIONS),
        (LABELS, "vote.json"),
        _vote_files,
    ),
    "sts": Step(run_sts, ("name", "judging", "judge", "vote", "sts", "source"), (), (PAIRS, "sts.json"), _sts_files),
    "build": Step(
        run_build,
        ("name", "build", "source", "judge", "vote", "sts"),
        (*_DECIDES, *_POOLED),
        _BUILT,
        lambda config: config.settings.build.train,
    ),
}
