"""The paper's ablations as a grid: presets × seeds on one configuration, with equal stages trained only once.

Below the output folder, ``stages/`` holds one folder for each distinct stage and ``cells/`` one for each preset and
seed, whose stages are links. Two cells with the same first stages link to the same folders, and the trainer's own check
of a finished stage's settings confirms that they may. A stopped grid continues where it was.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from care_benchmarks.measures import per_query
from care_trainer import recipe
from care_trainer.config import Align, Run, Stage, stage_name
from care_trainer.config.presets import apply_preset
from care_trainer.evaluation import load_evaluator
from care_trainer.models import towers
from care_trainer.models.teacher import encoding
from care_trainer.models.vector_cache import VectorCache, encoder_digest
from care_trainer.needs import ROWS_FOLDER
from care_trainer.training.context import Report

from care_qdrant.errors import InputError

FULL = "full"
"""Name of the cell with the unchanged configuration."""
MEASURES = ("nDCG@10", "RR@10", "R@100")
DEPTH = 100
Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Work:
    """Cost of one stage of a cell."""

    stage: str
    steps: int
    rows: int
    """Pairs or texts seen, counted in every epoch."""
    cpu_seconds: float
    """CPU time without the teacher's vectors, if they were in the cache."""


@dataclass(frozen=True)
class Cell:
    """One scored preset with one seed."""

    preset: str
    seed: int
    settings: str
    """Digest of all settings that the scores depend on, evaluation included."""
    work: list[Work]
    queries: list[str]
    scores: dict[str, list[float]]
    """Measure → scores in the order of ``queries``."""


def cell_run(run: Run, preset: str, seed: int, output: Path) -> Run:
    """Return the run of a cell."""
    seeded = replace(run, seed=seed)
    changed = seeded if preset == FULL else apply_preset(seeded, preset)
    return replace(changed, output=str(output / "cells" / f"{preset}-{seed}"))


def run_grid(run: Run, presets: Sequence[str], seeds: Sequence[int], output: Path, report: Report) -> Iterator[Cell]:
    """Train and score cell after cell, and yield each; a finished cell with equal settings is read."""
    if run.evaluation is None:
        raise InputError(f"{run.name}: has no [evaluation], so the grid could score nothing")
    changed = {(preset, seed): cell_run(run, preset, seed, output) for seed in seeds for preset in presets}
    prompt = _question_prompt(run)
    for (preset, seed), cell in changed.items():
        path, settings = Path(cell.output) / "scores.json", _digest(cell, prompt)
        scored = read_cell(path) if path.is_file() else None
        if scored is None or scored.settings != settings:
            _train(cell, output / "stages", report)
            scored = Cell(preset, seed, settings, _work(cell), *_score(cell, prompt))
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(asdict(scored)), encoding="utf-8")
            partial.replace(path)
        yield scored


def read_cell(path: Path) -> Cell:
    """Read a scored cell."""
    values = json.loads(path.read_text(encoding="utf-8"))
    return Cell(**{**values, "work": [Work(**work) for work in values["work"]]})


def _digest(run: Run, question_prompt: str | None) -> str:
    settings = [asdict(replace(run, output="")), question_prompt]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _train(run: Run, stages: Path, report: Report) -> None:
    output = Path(run.output)
    output.mkdir(parents=True, exist_ok=True)
    _link(output / ROWS_FOLDER, stages / ROWS_FOLDER)
    _link(output / recipe.BASE, stages / f"{recipe.BASE}-{recipe.place_digest(run, None)[:16]}")
    recipe.run_stages(replace(run, stage=()), report=report)
    for number, stage in enumerate(run.stage):
        name = stage_name(stage)
        _link(output / name, stages / f"{name}-{recipe.place_digest(run, stage)[:16]}")
        recipe.run_stages(replace(run, stage=run.stage[: number + 1]), only=name, report=report)


def _link(link: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(folder.resolve(), target_is_directory=True)


def _work(run: Run) -> list[Work]:
    return [_work_of(stage, recipe.read_record(Path(run.output) / stage_name(stage))) for stage in run.stage]


def _work_of(stage: Stage, record: Mapping[str, Any]) -> Work:
    steps = int(record["metrics"].get("steps", 0))
    return Work(stage_name(stage), steps, steps * stage.rows_of_process(1) * stage.accumulate, record["cpu_seconds"])


def _question_prompt(run: Run) -> str | None:
    """Return the prompt of the document encoder for queries, which it reads if it is used on both sides."""
    return next((stage.teacher_prompt for stage in run.stage if isinstance(stage, Align)), None)


def _score(run: Run, question_prompt: str | None) -> tuple[list[str], dict[str, list[float]]]:
    """Rank the evaluation set's corpus for each query, by exact search."""
    assert run.evaluation is not None
    evaluator = load_evaluator(run.evaluation, Path(run.data_root))
    corpus = evaluator.corpus_ids
    queries, documents = ([str(text) for text in texts] for texts in (evaluator.queries, evaluator.corpus))
    found = _queries(run, queries, question_prompt) @ _documents(run, documents).T
    order = np.argsort(-found, axis=1, kind="stable")[:, :DEPTH]
    ranked = {
        query: {corpus[at]: float(row[at]) for at in best}
        for query, row, best in zip(evaluator.queries_ids, found, order, strict=True)
    }
    qrels = {query: dict.fromkeys(evaluator.relevant_docs[query], 1) for query in evaluator.queries_ids}
    scores = per_query(qrels, ranked)
    return list(qrels), {name: [scores[name][query] for query in qrels] for name in MEASURES}


def _queries(run: Run, queries: Sequence[str], question_prompt: str | None) -> Array:
    folder = recipe.newest(run, run.symmetric or "query")
    if run.symmetric == "document":
        return _stored(run, folder, queries, question_prompt)
    vectors: Array = towers.load(folder).encode_query(list(queries), show_progress_bar=False)
    return vectors


def _documents(run: Run, documents: Sequence[str]) -> Array:
    folder = recipe.newest(run, run.symmetric or "document")
    if run.symmetric == "query":
        vectors: Array = towers.load(folder).encode_document(list(documents), show_progress_bar=False)
        return vectors
    return _stored(run, folder, documents, None)


def _stored(run: Run, folder: Path, texts: Sequence[str], prompt: str | None) -> Array:
    """Encode with the document encoder; a cache avoids encoding a corpus again that cells share."""
    encode = encoding(lambda: towers.load(folder), prompt=prompt)
    if run.teacher_cache is None:
        return encode(list(texts))
    cache = VectorCache(Path(run.teacher_cache), encoder_digest(folder, prompt), run.dim)
    return cache.encode(texts, encode).astype(np.float32)
