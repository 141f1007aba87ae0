"""Presets: the paper's comparisons, as changes of a run: the same data and models with one difference."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from care_qdrant.errors import InputError
from care_trainer.config.load import parse_run
from care_trainer.config.run import Diversify, Run
from care_trainer.config.stages import Joint, Prune, Stage

PRUNED_LAYERS = 3
"""Layers of the document encoder that a pruned query encoder keeps; a smaller one keeps half of its layers."""
QUERY_STAGES = ("static", "retromae", "unsupervised", "supervised")

Change = Callable[[Run], Run]


@dataclass(frozen=True)
class Preset:
    """A named change of a run."""

    table: str
    """Table of arXiv 2604.10937, ``control`` for what the paper lacks, or ``–``."""
    description: str
    """Summary of the change, one line."""
    change: Change


def apply_preset(run: Run, name: str) -> Run:
    """Return the run with a preset's change, under its own name and output folder."""
    if name not in PRESETS:
        raise InputError(f"--preset {name}: unknown preset (known: {', '.join(PRESETS)})")
    changed = replace(PRESETS[name].change(run), name=f"{run.name}-{name}", output=f"{run.output}-{name}")
    return parse_run(dataclasses.asdict(changed), f"{run.name} with preset {name}")


def _all(*changes: Change) -> Change:
    return lambda run: reduce(lambda changed, change: change(changed), changes, run)


def _without(*kinds: str) -> Change:
    return lambda run: replace(run, stage=tuple(stage for stage in run.stage if not _is_one(run, stage, kinds)))


def _is_one(run: Run, stage: Stage, kinds: tuple[str, ...]) -> bool:
    # A static table initialises both encoders, unless the document encoder is pretrained.
    return stage.kind in kinds and (stage.kind != "static" or run.document.base is not None)


def _find(run: Run, *kinds: str) -> Any:
    """Return the last stage of some kinds."""
    for stage in reversed(run.stage):
        if _is_one(run, stage, kinds):
            return stage
    raise InputError(f"{run.name}: has no stage {' or '.join(map(repr, kinds))}, which the preset changes")


def _set(kind: str, **settings: Any) -> Change:
    def change(run: Run) -> Run:
        _find(run, kind)
        return replace(
            run, stage=tuple(replace(stage, **settings) if stage.kind == kind else stage for stage in run.stage)
        )

    return change


def _twice(*kinds: str) -> Change:
    return lambda run: _set((stage := _find(run, *kinds)).kind, epochs=2 * stage.epochs)(run)


def _symmetric_document(run: Run) -> Run:
    run = replace(_without(*QUERY_STAGES, "align", "joint")(run), symmetric="document")
    # A pretrained document encoder that no stage trains stays as it is.
    is_trained = any(stage.kind == "document" for stage in run.stage)
    return _twice("document")(run) if is_trained or run.document.base is None else run


_SYMMETRIC_QUERY = _all(
    lambda run: replace(run, symmetric="query"),
    _without("document", "align", "joint"),
    _twice("static", "supervised"),
)


def _diversified(sides: Any) -> Change:
    def change(run: Run) -> Run:
        name = _find(run, "supervised").data
        own = replace(run.data[name].diversify or Diversify(), sides=sides)
        return replace(run, data={**run.data, name: replace(run.data[name], diversify=own)})

    return _all(_SYMMETRIC_QUERY, change)


def _on_pairs(run: Run) -> Run:
    """Return Stage I on the data of Stage II; batch, loss and epochs stay as in Stage I (table 20)."""
    return _set("align", data=_find(run, "joint").data, pairs=True)(run)


def _pruned(run: Run) -> Run:
    align, scratch = _find(run, "align"), run.document.scratch
    layers = PRUNED_LAYERS if scratch is None else min(PRUNED_LAYERS, scratch.layers // 2)
    wide = _without(*QUERY_STAGES, "joint")(_widened(run))
    at = wide.stage.index(align)
    prune = Prune(kind="prune", layers=layers, evaluate=align.evaluate)
    return replace(wide, stage=(*wide.stage[:at], prune, *wide.stage[at:]))


def _widened(run: Run) -> Run:
    """Return the run at the document encoder's width, with a projection of the query's base."""
    if run.document.scratch is not None:
        hidden = run.document.scratch.hidden
    else:
        from transformers import AutoConfig

        try:
            hidden = AutoConfig.from_pretrained(str(run.document.base), revision=run.document.revision).hidden_size
        except (OSError, ValueError) as error:
            raise InputError(f"document.base {run.document.base}: has no configuration to read ({error})") from error
    return replace(run, dim=int(hidden), query=replace(run.query, projection=True))


def _longer_joint(run: Run) -> Run:
    joint: Joint = _find(run, "joint")
    return _all(_without("align"), _set("joint", epochs=joint.epochs + _find(run, "align").epochs))(run)


_FINE_TUNING_ONLY = _all(_SYMMETRIC_QUERY, _without("retromae", "unsupervised"))

PRESETS: dict[str, Preset] = {
    "symmetric-document": Preset("4", "the document encoder on both sides, twice the epochs", _symmetric_document),
    "symmetric-query": Preset("4, 12", "the query encoder on both sides, twice the epochs", _SYMMETRIC_QUERY),
    "without-align": Preset("5", "no Stage I", _without("align")),
    "without-contrastive": Preset("5", "Stage I with the distance alone", _set("align", contrastive_weight=0.0)),
    "without-document-init": Preset("5", "the document encoder is the base model", _without("document")),
    "without-joint": Preset("5, 6", "no Stage II", _without("joint")),
    "without-mse": Preset("5", "Stage I with the contrastive term alone", _set("align", mse_weight=0.0)),
    "without-query-init": Preset("5", "the query encoder goes into Stage I untrained", _without(*QUERY_STAGES)),
    "fine-tuning-data": Preset("6", "Stage I on pairs, the document side frozen", _on_pairs),
    "fine-tuning-data-only": Preset("6", "the same, and no Stage II", _all(_on_pairs, _without("joint"))),
    "diversified": Preset("11", "symmetric query encoder, no near-duplicates on either side", _diversified("both")),
    "diversified-queries": Preset("11", "the same, near-duplicate queries left out", _diversified("query")),
    "undiversified": Preset("11", "the same, as many pairs, near-duplicates stay", _diversified("none")),
    "fine-tuning-only": Preset("12", "symmetric query encoder, supervised stage alone", _FINE_TUNING_ONLY),
    "retromae-fine-tuning": Preset("12", "and RetroMAE", _all(_SYMMETRIC_QUERY, _without("unsupervised"))),
    "longer-joint": Preset("control", "no Stage I, its epochs given to Stage II: equal data passes", _longer_joint),
    "pruned": Preset("–", "the query encoder is the document encoder's first three layers", _pruned),
    "without-retromae": Preset("–", "the model, its query encoder without RetroMAE", _without("retromae")),
    "without-unsupervised": Preset("–", "the model, its query encoder without it", _without("unsupervised")),
}
