"""Runs the stages in order, each in its own folder; finished ones are kept, an interrupted one is resumed."""

import dataclasses
import functools
import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from care_qdrant.encoders.references import keep_check_vectors
from care_qdrant.errors import InputError
from care_qdrant.model.adopt.published import plain_vectors
from care_qdrant.progress import duration
from care_trainer import evaluation
from care_trainer.config import Run, Stage, stage_name
from care_trainer.config.run import BASE, COLLECTION
from care_trainer.disk import write_json, writing
from care_trainer.distributed import free_memory, main_process_first, processes
from care_trainer.learn.snapshot import load_snapshot
from care_trainer.models.towers import ADAPTER_FILE
from care_trainer.needs import RUN_FILE, STAGE_FILE, require_needs
from care_trainer.stages import align, base, contrastive, joint, prune, retromae, static
from care_trainer.stages.context import Context, Trained, rows_of
from care_trainer.training.checkpoints import drop_checkpoints
from care_trainer.training.context import Report, silent
from care_trainer.training.loop import losses_in_words

logger = logging.getLogger(__name__)

BEGUN_FILE = "settings.json"
"""Name of the file with the settings of a started stage, which is resumed only with the same ones."""
MEMORY_SETTINGS = {"mini_batch_size", "mini_batch_tokens", "cached", "gradient_checkpointing"}
"""Settings that may change when a stage is resumed, so that one that ran out of memory can be made to fit."""
SIDES = ("query", "document")
SHOWN_SCORES = {
    "ndcg@10": "nDCG@10",
    "recall@100": "recall@100",
    "recall_at_10": "recall@10",
    "percentile": "percentile",
}

STAGES: dict[str, Callable[[Context], Trained]] = {
    "static": static.train_static,
    "retromae": retromae.train_retromae,
    "unsupervised": contrastive.train_query,
    "supervised": contrastive.train_query,
    "document": contrastive.train_document,
    "align": align.train_align,
    "joint": joint.train_joint,
    "prune": prune.prune_document,
}


def run_stages(
    run: Run,
    *,
    only: str | None = None,
    report: Report = silent,
    deadline: float | None = None,
) -> list[dict[str, Any]]:
    """Train all stages of a run, or one; finished ones are kept, and an interrupted one is resumed."""
    output = Path(run.output)
    names = [stage_name(stage) for stage in run.stage]
    if only is not None and only not in names:
        raise InputError(f"--stage {only}: unknown stage (known: {', '.join(names)})")
    require_needs(run, run.name)
    records = []
    with main_process_first() as is_main:
        if is_main:
            _write(output / RUN_FILE, dataclasses.asdict(run))
            _read_all(run, only)
            _ensure_base(run, output / BASE, report)
    for number, stage in enumerate(run.stage):
        name = stage_name(stage)
        if only in (None, name):
            query, document = (newest(run, side, run.stage[:number]) for side in SIDES)
            context = Context(
                run=run,
                stage=stage,
                folder=output / name,
                query=query,
                document=document,
                report=report,
                deadline=deadline,
            )
            records.append(_ensure_stage(context))
    return records


def _read_all(run: Run, only: str | None) -> None:
    """Read the rows of all stages that are to train, and the evaluation set, so that a bad line ends no later stage."""
    stages = [
        stage
        for stage in run.stage
        if only in (None, stage_name(stage)) and not (Path(run.output) / stage_name(stage) / STAGE_FILE).exists()
    ]
    for stage in stages:
        if stage.data in run.data:  # not the texts of a collection, which the base reads
            rows_of(run, stage)
    if run.evaluation is not None and any(stage.evaluate for stage in stages):
        evaluation.load_evaluator(run.evaluation, Path(run.data_root))


def newest(run: Run, side: str, before: Sequence[Stage] | None = None) -> Path:
    """Return the folder of the newest encoder of a side."""
    output = Path(run.output)
    for stage in reversed(run.stage if before is None else before):
        folder = output / stage_name(stage)
        if not (folder / STAGE_FILE).exists():
            raise InputError(f"stage {folder.name}: is not finished; run it first")
        if (folder / side).is_dir():
            return folder / side
    return output / BASE / side


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record that a finished stage wrote."""
    record: dict[str, Any] = json.loads((folder / STAGE_FILE).read_text(encoding="utf-8"))
    return record


def in_words(record: dict[str, Any]) -> str:
    """Return the time and the scores of a stage as text."""
    took = duration(record["seconds"])
    if not torch.cuda.is_available():
        took += f", {duration(record['cpu_seconds'])} of CPU time"
    measured = record.get("evaluation") or {}
    scores = [f"{label} {measured[key]:.3f}" for key, label in SHOWN_SCORES.items() if key in measured]
    return f"{took}; on the questions of the evaluation {', '.join(scores)}" if scores else took


def _ensure_base(run: Run, folder: Path, report: Report) -> None:
    settings = _base_settings(run)
    if _finished(folder, settings):
        return
    logger.info("base models → %s", folder)
    shutil.rmtree(folder, ignore_errors=True)
    with writing(f"{folder}: the base models cannot be written"):
        encoders = base.build(run, folder, report)
    _save(encoders, folder)
    _write(folder / STAGE_FILE, {"stage": BASE, "settings": settings})


def _ensure_stage(context: Context) -> dict[str, Any]:
    """Train a stage unless it is finished, and return its record."""
    run, stage, folder = context.run, context.stage, context.folder
    settings = _settings(run, stage, {"query": context.query, "document": context.document})
    if _finished(folder, settings):
        return read_record(folder)
    processes().wait_for_everyone()  # no process may write a file that another one still looks for
    hashes = context.data_hashes()
    noted, begun = folder / "data.json", folder / BEGUN_FILE
    if noted.exists() and json.loads(noted.read_text(encoding="utf-8")) != hashes:
        raise InputError(f"{folder}: the data files have changed since the stage began; remove the folder")
    if begun.exists():
        before = json.loads(begun.read_text(encoding="utf-8"))
        _require_same_settings(folder, {key: before[key] for key in before.keys() - MEMORY_SETTINGS}, settings)
    processes().wait_for_everyone()  # all have read the files before they are written again
    if processes().is_main_process:
        _write(folder / "config.json", dataclasses.asdict(run))
        _write(noted, hashes)
        _write(begun, settings)
        logger.info("stage %s, %d of %d", folder.name, run.stage.index(stage) + 1, len(run.stage))
    trained = STAGES[stage.kind](context)
    with main_process_first() as is_main:
        if is_main:
            _conclude(context, trained, settings, hashes)
    del trained
    free_memory()
    return read_record(folder)


def _conclude(context: Context, trained: Trained, settings: dict[str, Any], hashes: dict[str, str]) -> None:
    """Save the encoders of a stage, score them, and write its record, which marks it as finished."""
    run, stage, folder = context.run, context.stage, context.folder
    _save({side: model for side, model in zip(SIDES, (trained.query, trained.document), strict=True) if model}, folder)
    record = {
        "stage": folder.name,
        "kind": stage.kind,
        "settings": settings,
        "seed": run.seed,
        "data": hashes,
        "trainable": trained.trainable,
        "temperature": trained.temperature,
        "metrics": trained.metrics,
        "evaluation": _evaluate(run, stage, trained),
        **dataclasses.asdict(context.timer.spent()),
    }
    _write(folder / STAGE_FILE, record)
    logger.info("stage %s: %s%s", folder.name, in_words(record), losses_in_words(folder))
    drop_checkpoints(folder)
    shutil.rmtree(folder / "teacher", ignore_errors=True)  # gigabytes that only a resume of this stage would read


def _evaluate(run: Run, stage: Stage, trained: Trained) -> dict[str, float] | None:
    if run.document.collection is not None and stage.evaluate and trained.query is not None:
        return dataclasses.asdict(load_snapshot(run.collection_folder).score(trained.query))
    if run.evaluation is None or not stage.evaluate or trained.evaluate is None:
        return None
    return evaluation.score(evaluation.load_evaluator(run.evaluation, Path(run.data_root)), trained.evaluate)


def _finished(folder: Path, settings: Any) -> bool:
    """Return whether a stage is finished; refuse one with other settings, which would silently mix two runs."""
    if not (folder / STAGE_FILE).exists():
        return False
    _require_same_settings(folder, read_record(folder)["settings"], settings)
    return True


def _require_same_settings(folder: Path, before: dict[str, Any], settings: dict[str, Any]) -> None:
    changed = _changed(before, json.loads(json.dumps(settings)))
    if changed:
        raise InputError(
            f"{folder}: was trained with other settings ({', '.join(changed)}); remove it and the stages after it, "
            "or give another output"
        )


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the settings that differ, among those that the older record has."""
    changed = []
    for key in sorted(before.keys() & now.keys()):
        if isinstance(before[key], dict) and isinstance(now[key], dict) and key != "weights":
            changed += [f"{key}.{inner}" for inner in _changed(before[key], now[key])]
        elif before[key] != now[key]:
            changed.append(key)
    return changed


def _settings(run: Run, stage: Stage, sources: dict[str, Path]) -> dict[str, Any]:
    """Return everything that determines what a stage trains, with the records of the encoders it starts from."""
    tasks = set(run.data_set(stage.data).tasks.values()) if stage.data else set()
    return {
        **dataclasses.asdict(stage),
        "data_set": _data_settings(run, stage.data) if stage.data else {},
        "tasks": {name: dataclasses.asdict(run.tasks[name]) for name in sorted(tasks)},
        "seed": run.seed,
        # A stage that was trained again has another record, so stages on top of the old one are not kept.
        "starts_from": {
            side: hashlib.sha256((folder.parent / STAGE_FILE).read_bytes()).hexdigest()
            for side, folder in sources.items()
        },
    }


def _data_settings(run: Run, name: str) -> dict[str, Any]:
    """Return the settings of a data set; the settings of a collection are in the record of the base."""
    is_read = name == COLLECTION and run.document.collection is not None
    return {} if is_read else dataclasses.asdict(run.data[name])


def _base_settings(run: Run) -> dict[str, Any]:
    whole = dataclasses.asdict(run)
    if run.document.collection is not None:  # the same collection, wherever it is reached
        whole["document"]["collection"] |= {"url": None, "path": None}
    return {key: whole[key] for key in ("query", "document", "vocabulary", "dim", "geometry", "seed")}


def _save(models: dict[str, SentenceTransformer], folder: Path) -> None:
    """Save encoders so that each folder appears whole or not at all."""
    for side, model in models.items():
        partial = folder / f".{side}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with writing(f"{folder / side}: cannot be saved; the stages before this one are whole"):
                model.save_pretrained(str(partial), create_model_card=False)
                if (partial / ADAPTER_FILE).exists():
                    _order_adapter(partial / ADAPTER_FILE)
                    keep_check_vectors(functools.partial(plain_vectors, model), partial)
            shutil.rmtree(folder / side, ignore_errors=True)
            partial.rename(folder / side)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _order_adapter(path: Path) -> None:
    """Sort the list that peft writes in set order, which varies by process, so that equal encoders have equal files."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(config["target_modules"], list):  # else a pattern
        config["target_modules"].sort()
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _write(path: Path, value: Any) -> None:
    with writing(f"{path}: cannot be written"):
        write_json(path, value)
