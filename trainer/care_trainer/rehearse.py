"""A small rehearsal of a run before it is paid for: every stage at its real widths, with its files and processes.

Each stage takes three steps: it is stopped after the first one and resumed from its checkpoint, and its last step is
timed. Then the model is exported and loaded. With fewer layers the run is repeated with one layer less on each side,
and what a layer takes is the difference: nothing here counts memory or operations on paper. Memory is compared as what
a part added to what the process held before: what a run leaves behind would hide the layer that the next run lacks.
"""

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer

from care_qdrant import CareModel
from care_qdrant.encoders.local.architecture import native_folder
from care_qdrant.encoders.local.weights import readable_model
from care_qdrant.errors import InputError, TrainingError
from care_trainer import recipe
from care_trainer.config import Run, Side, Stage, Tower, stage_name
from care_trainer.config.stages import Prune
from care_trainer.data.report import describe
from care_trainer.distributed import free_memory, processes
from care_trainer.export.checkpoint import export
from care_trainer.models import towers
from care_trainer.needs import STAGE_FILE, require_needs
from care_trainer.stages.context import rows_folder
from care_trainer.training.loop import Interrupted, peak_memory_bytes, reset_peak_memory

STEPS = 3
EXPORT = "export"
TEXTS = ["高血压吃什么好？"]
Depths = Mapping[Side, int]


@dataclass(frozen=True)
class Part:
    """The cost of a stage, or of the export: as measured, or as forecast for all of it."""

    peak_bytes: float
    """Most memory of one process: of its GPU, or without one the resident set."""
    held_bytes: float
    """Memory of the process when the part began."""
    seconds: float
    """Time of one step or of the export; in a forecast, of the whole part."""
    disk_bytes: float
    """Size of the folder: encoders and a checkpoint."""
    teacher_seconds: float = 0.0
    teacher_bytes: float = 0.0
    """Size of the stored vectors of the teacher, which grow with the rows."""

    def numbers(self) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return the figures as a vector, in their order; of the memory, what the part added."""
        added = self.peak_bytes - self.held_bytes
        return np.array([added, self.seconds, self.disk_bytes, self.teacher_seconds, self.teacher_bytes], np.float64)

    def deeper(self, layers: Mapping[Side, int], without_one: "Mapping[Side, Part]") -> "Part":
        """Return the forecast for more layers on some sides, from the same part with one layer less on each."""
        numbers = self.numbers()
        for side, more in layers.items():
            numbers = numbers + more * np.maximum(self.numbers() - without_one[side].numbers(), 0)
        added, *rest = numbers.tolist()
        return Part(self.held_bytes + added, self.held_bytes, *rest)


@dataclass(frozen=True)
class Rehearsal:
    """The measured figures of the small run, and the forecast of the full run."""

    processes: int
    layers: dict[Side, int]
    """Layers that ran, by side."""
    of: dict[Side, int]
    """Layers of the run, by side."""
    parts: dict[str, dict[str, dict[str, float]]]
    """Figures by stage: peak memory of a process and seconds a step as measured; memory, hours and disk as forecast."""
    whole: dict[str, float]
    """The largest peak, all hours and all disk."""


@dataclass
class Clock:
    """Moments of the last steps of a stage, and of its teacher's vectors."""

    steps: list[float] = field(default_factory=list)
    teacher: list[float] = field(default_factory=list)

    def report(self, what: str, *_: float) -> None:
        """Record the time of a step."""
        (self.teacher if what.startswith("teacher") else self.steps).append(time.monotonic())


def rehearse(run: Run, *, layers: int | None = None, rows: int | None = None) -> Rehearsal:
    """Run every stage, the export and the import of a run at small scale, and forecast the full run."""
    if layers is not None and layers < 2:
        raise InputError("--layers: expected at least 2; what a layer takes is measured by leaving one out")
    require_needs(run, run.name, weights=False)
    figures = describe(run)
    count = processes().num_processes
    full: dict[Side, int] = {"query": _layers(run, "query"), "document": _layers(run, "document")}
    depths: dict[Side, int] = {side: min(layers or full[side], full[side]) for side in full}
    measured = _run(run, "all", depths, full, rows)
    lacking = {side: full[side] - depths[side] for side in full if depths[side] < full[side]}
    of_layer = {side: _run(run, side, {**depths, side: depths[side] - 1}, full, rows) for side in lacking}
    parts = {}
    for name, part in measured.items():
        all_layers = part.deeper(lacking, {side: of_layer[side][name] for side in lacking})
        stage = next((stage for stage in run.stage if stage_name(stage) == name), None)
        steps, growth = _steps(stage, figures, count, rows) if stage is not None else (1.0, 0.0)
        parts[name] = {
            "measured": {"peak_gib": _gib(part.peak_bytes), "seconds": round(part.seconds, 3)},
            "forecast": {
                "peak_gib": _gib(all_layers.peak_bytes),
                "hours": round((steps * all_layers.seconds + growth * all_layers.teacher_seconds) / 3600, 3),
                "disk_gib": _gib(all_layers.disk_bytes + growth * all_layers.teacher_bytes),
            },
        }
    forecasts = [part["forecast"] for part in parts.values()]
    whole = {
        "peak_gib": max(forecast["peak_gib"] for forecast in forecasts),
        "hours": round(sum(forecast["hours"] for forecast in forecasts), 3),
        "disk_gib": round(sum(forecast["disk_gib"] for forecast in forecasts), 3),
    }
    return Rehearsal(count, {**depths}, {**full}, parts, whole)


def _gib(count: float) -> float:
    return round(count / 2**30, 3)


def _steps(stage: Stage, figures: Mapping[str, Any], count: int, rows: int | None) -> tuple[float, float]:
    """Return the steps of a stage, counted in rehearsed steps, and its rows as a multiple of the rehearsed rows."""
    own = stage.rows_of_process(count) * stage.accumulate
    small = (rows or stage.rows_of_process(count)) * stage.accumulate
    if not stage.data:
        return 0.0, 0.0
    figures_of_stage = figures[stage_name(stage)]
    steps = stage.max_steps or stage.epochs * figures_of_stage["rows_an_epoch"] / (own * count)
    return steps * own / small, max(1.0, figures_of_stage["rows"] / (STEPS * small * count))


def _layers(run: Run, side: Side) -> int:
    tower = run.query if side == "query" else run.document
    if tower.base is None:
        return tower.scratch.layers if tower.scratch is not None else 0
    with native_folder(_base_folder(tower, side)) as folder:
        return int(AutoConfig.from_pretrained(folder).num_hidden_layers)


def _run(run: Run, name: str, depths: Depths, full: Depths, rows: int | None) -> dict[str, Part]:
    """Train all stages of a run at small scale, export and load the model, and return the cost of each part."""
    work = Path(run.output) / name
    small = _small(run, work, depths, full, rows)
    parts = {}
    if processes().is_main_process:  # all runs read the same files: once
        rows_folder(run).mkdir(parents=True, exist_ok=True)
        work.mkdir()
        rows_folder(small).symlink_to(rows_folder(run).resolve(), target_is_directory=True)
    processes().wait_for_everyone()
    recipe.run_stages(replace(small, stage=()))
    for stage in small.stage:
        stage_label, clock = stage_name(stage), Clock()
        held_bytes = _fresh_peak()
        with suppress(Interrupted):  # the deadline has come, so the stage stops after its first step
            recipe.run_stages(small, only=stage_label, deadline=time.monotonic(), report=clock.report)
        folder = work / stage_label
        teacher, held = _size(folder / "teacher"), _size(folder)
        if (folder / STAGE_FILE).exists() and stage.data:
            raise TrainingError(f"{stage_label}: was not stopped after its first step")
        clock.steps.clear()
        recipe.run_stages(small, only=stage_label, report=clock.report)
        # The last step alone: the one before it includes the start of the loader.
        seconds = clock.steps[-1] - clock.steps[-2] if len(clock.steps) > 1 else 0.0
        taught = clock.teacher[-1] - clock.teacher[0] if clock.teacher else 0.0
        disk = max(held - teacher, _size(folder))
        parts[stage_label] = Part(peak_memory_bytes(), held_bytes, seconds, disk, taught, teacher)
    if processes().is_main_process:
        held_bytes = _fresh_peak()
        started = time.monotonic()
        export(small, "care-train rehearse")
        folder = work / small.name
        peak, seconds = peak_memory_bytes(), time.monotonic() - started
        with_stock = SentenceTransformer(str(folder), device="cpu").encode_query(TEXTS)
        if not np.allclose(CareModel.load(str(folder), precision="fp32").encode_query(TEXTS), with_stock, atol=1e-3):
            raise TrainingError(f"{folder}: gives other vectors when it is loaded")
        parts[EXPORT] = Part(peak, held_bytes, seconds, _size(folder))
    return parts


def _fresh_peak() -> int:
    """Restart the measurement of the peak, and return the memory that is held now."""
    free_memory()
    reset_peak_memory()
    return peak_memory_bytes()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _small(run: Run, work: Path, depths: Depths, full: Depths, rows: int | None) -> Run:
    """Return the run with three steps per stage, over as many rows as they need."""
    count = processes().num_processes
    stages: list[Any] = []
    for stage in run.stage:
        changed = replace(stage, max_steps=STEPS, evaluate_steps=None, patience=None)
        if rows is not None:
            changed = replace(changed, batch_size=rows, global_batch_size=None)
        if isinstance(changed, Prune):
            changed = replace(changed, layers=min(changed.layers, depths["document"] - 1))
        stages.append(changed)
    needed = max((STEPS * stage.rows_of_process(count) * stage.accumulate * count for stage in stages), default=STEPS)
    data = {name: replace(own, max_rows=min(own.max_rows or 4 * needed, 4 * needed)) for name, own in run.data.items()}
    return replace(
        run,
        output=str(work),
        stage=tuple(stages),
        data=data,
        evaluation=None,
        checkpoint_minutes=60.0,
        teacher_cache=None,
        report_to=(),
        export=replace(run.export, probe_texts=min(run.export.probe_texts, 8)),
        query=_cut(run, "query", work, depths, full),
        document=_cut(run, "document", work, depths, full),
    )


def _base_folder(tower: Tower, side: Side) -> Path:
    assert tower.base is not None
    return towers.own_folder(tower.base, side, tower.revision)


def _cut(run: Run, side: Side, work: Path, depths: Depths, full: Depths) -> Tower:
    """Return an encoder with its first layers alone; one without weight files gets random weights."""
    tower = run.query if side == "query" else run.document
    folder, layers = work.with_name(f"{work.name}-{side}"), depths[side]
    if layers == full[side] and (tower.base is None or _has_weights(tower, side)):
        return tower
    if tower.scratch is not None:
        return replace(tower, scratch=replace(tower.scratch, layers=layers))
    if processes().is_main_process and not folder.exists():
        source = _base_folder(tower, side)
        with native_folder(source) as native:
            if tower.pooling == "own":  # the folder also holds pooling, token weights and Dense layers
                shutil.copytree(source, folder, ignore=shutil.ignore_patterns("model*.safetensors*", "onnx"))
            config = AutoConfig.from_pretrained(native, num_hidden_layers=layers)
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[:layers]
            kind: Any = AutoModelForMaskedLM if towers.reads_both_ways(config.model_type) else AutoModel
            if _has_weights(tower, side):
                with readable_model(source) as readable:
                    model = kind.from_pretrained(readable, config=config, dtype=config.dtype)
            else:
                model = kind.from_config(config, dtype=config.dtype)
            model.save_pretrained(folder)
            AutoTokenizer.from_pretrained(native).save_pretrained(folder)
        del model
        free_memory()
    processes().wait_for_everyone()
    return replace(tower, base=str(folder), revision=None)


def _has_weights(tower: Tower, side: Side) -> bool:
    return any(_base_folder(tower, side).glob("*.safetensors"))
