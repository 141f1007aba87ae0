"""The paper's comparisons, as changes of a run: the same data and models, one thing different.

Tables of arXiv 2604.10937. Where the paper does not say how a baseline was set up, the description says what is done.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from care_qdrant.errors import InputError
from care_trainer.config import Align, Contrastive, Distill, Diversify, Joint, Prune, Run, Stage

QUERY_INITIALISATION = ("retromae", "unsupervised", "supervised")
DOCUMENT_INITIALISATION = ("document",)
_DISTILL_SETTINGS = {field.name for field in fields(Contrastive)} - {"kind", "name"}
PRUNED_LAYERS = 3
"""Of the document encoder; a smaller one keeps half of its layers."""


@dataclass(frozen=True)
class Preset:
    """A named change of a run."""

    table: str
    """Of the paper, or why it is here."""
    description: str
    change: Callable[[Run], Run]


def apply_preset(run: Run, name: str) -> Run:
    """Give the run with a preset's change, under its own name and output folder.

    Raises:
        InputError: there is no such preset, or the run lacks the stage that it changes.
    """
    if name not in PRESETS:
        raise InputError(f"--preset {name}: there is no such preset (there are: {', '.join(PRESETS)})")
    changed = PRESETS[name].change(run)
    return replace(changed, name=f"{run.name}-{name}", output=f"{run.output}-{name}")


def without(*kinds: str) -> Callable[[Run], Run]:
    """Leave stages out."""
    return lambda run: replace(run, stage=tuple(stage for stage in run.stage if stage.kind not in kinds))


def _without_query_initialisation(run: Run) -> Run:
    return without(*_query_initialisation(run))(run)


def _query_initialisation(run: Run) -> tuple[str, ...]:
    """Name the kinds that train the query encoder alone: the bag, too, beside a pretrained document encoder."""
    return QUERY_INITIALISATION if run.document.base is None else ("bag", *QUERY_INITIALISATION)


def _last(run: Run, kinds: tuple[str, ...]) -> Stage:
    """Give the last stage of some kinds."""
    for stage in reversed(run.stage):
        if stage.kind in kinds:
            return stage
    raise InputError(f"{run.name}: has no stage {' or '.join(kinds)}, which the preset changes")


def _with(kind: str, **values: Any) -> Callable[[Run], Run]:
    """Change settings of the stages of a kind."""

    def change(run: Run) -> Run:
        _require(run, kind)
        stages = (replace(stage, **values) if stage.kind == kind else stage for stage in run.stage)
        return replace(run, stage=tuple(stages))

    return change


def _both(first: Callable[[Run], Run], second: Callable[[Run], Run]) -> Callable[[Run], Run]:
    return lambda run: second(first(run))


def _require(run: Run, kind: str) -> Stage:
    for stage in run.stage:
        if stage.kind == kind:
            return stage
    raise InputError(f"{run.name}: has no stage {kind!r}, which the preset changes")


def _symmetric_query(run: Run) -> Run:
    last = _last(run, tuple(kind for kind in _query_initialisation(run) if kind in ("bag", "supervised")))
    kept = without("document", "causal", "align", "joint")(run)
    return replace(_with(last.kind, epochs=last.epochs * 2)(kept), symmetric="query")


def _symmetric_document(run: Run) -> Run:
    kept = replace(without("align", "joint")(_without_query_initialisation(run)), symmetric="document")
    if run.document.base is not None and not any(stage.kind == "document" for stage in run.stage):
        return kept  # pretrained, and trained no further
    return _with("document", epochs=2 * _require(run, "document").epochs)(kept)


def _fine_tuning_data(run: Run) -> Run:
    joint, align = _require(run, "joint"), _require(run, "align")
    assert isinstance(joint, Joint)
    first = replace(joint, name=align.name or align.kind, freeze_document=True, epochs=align.epochs)
    stages = (first if stage is align else stage for stage in run.stage)
    return replace(run, stage=tuple(stages))


def _fine_tuning_data_only(run: Run) -> Run:
    changed = _fine_tuning_data(run)
    stages = (stage for stage in changed.stage if not isinstance(stage, Joint) or stage.freeze_document)
    return replace(changed, stage=tuple(stages))


def _longer_joint(run: Run) -> Run:
    joint, align = _require(run, "joint"), _require(run, "align")
    seen = joint.epochs + align.epochs
    return _with("joint", epochs=seen)(without("align")(run))


def _instead_of_align(cost: Literal["texts", "operations"]) -> Callable[[Run], Run]:
    def change(run: Run) -> Run:
        return _with("joint", instead_of=_require(run, "align"), cost=cost)(without("align")(run))

    return change


def _diversified(sides: Literal["both", "query", "none"]) -> Callable[[Run], Run]:
    """Change the pairs of the supervised stage, on the symmetric query encoder as in the paper."""

    def change(run: Run) -> Run:
        name = _require(run, "supervised").data
        data = run.data[name]
        diversify = replace(data.diversify or Diversify(), sides=sides)
        return replace(_symmetric_query(run), data={**run.data, name: replace(data, diversify=diversify)})

    return change


def _pruned(**weights: Any) -> Callable[[Run], Run]:
    def change(run: Run) -> Run:
        align = _require(run, "align")
        kept = without("joint")(_without_query_initialisation(run))
        stages: list[Stage] = []
        for stage in kept.stage:
            if stage is align:
                prune = Prune(kind="prune", layers=_pruned_layers(run), evaluate=align.evaluate)
                stages += [prune, replace(align, **weights)]
            else:
                stages.append(stage)
        return replace(kept, stage=tuple(stages))

    return change


def _pruned_layers(run: Run) -> int:
    scratch = run.document.scratch
    return PRUNED_LAYERS if scratch is None else min(PRUNED_LAYERS, scratch.layers // 2)


def _distilled(run: Run) -> Run:
    last = _last(run, ("supervised", "joint"))
    shared = {key: value for key, value in vars(last).items() if key in _DISTILL_SETTINGS}
    prompt = next((stage.teacher_prompt for stage in run.stage if isinstance(stage, Align)), None)
    kept = without("align", "joint")(run)
    student = Distill(kind="distill", teacher_prompt=prompt, **shared)
    return replace(kept, stage=(*kept.stage, student), symmetric="query")


def _up_projected(run: Run) -> Run:
    joint = _require(run, "joint")
    kept = without("align")(run)
    query = replace(run.query, projection=True)
    changed = _with("joint", document_learning_rate=joint.learning_rate / 10)(kept)
    return replace(changed, query=query, dim=_hidden(run))


def _hidden(run: Run) -> int:
    if run.document.scratch is not None:
        return run.document.scratch.hidden
    from transformers import AutoConfig

    assert run.document.base is not None, "a tower has a base or a shape"
    return int(AutoConfig.from_pretrained(run.document.base, revision=run.document.revision).hidden_size)


PRESETS: dict[str, Preset] = {
    "without-query-init": Preset("5", "the query encoder goes into Stage I untrained", _without_query_initialisation),
    "without-document-init": Preset("5", "the document encoder is the base model", without(*DOCUMENT_INITIALISATION)),
    "without-align": Preset("5", "no Stage I", without("align")),
    "without-joint": Preset("5, 6", "no Stage II", without("joint")),
    "without-mse": Preset("5", "Stage I with the contrastive term alone", _with("align", mse_weight=0.0)),
    "without-contrastive": Preset("5", "Stage I with the distance alone", _with("align", contrastive_weight=0.0)),
    "fine-tuning-data": Preset("6", "Stage I on query-document pairs, the document side frozen", _fine_tuning_data),
    "fine-tuning-data-only": Preset("6", "the same, and no Stage II", _fine_tuning_data_only),
    "without-retromae": Preset("–", "the pair, its query encoder without RetroMAE", without("retromae")),
    "without-unsupervised": Preset(
        "–", "the pair, its query encoder without the unsupervised stage", without("unsupervised")
    ),
    "undiversified": Preset("11", "symmetric query encoder, near-duplicates stay, as many pairs", _diversified("none")),
    "diversified-queries": Preset(
        "11", "symmetric query encoder, near-duplicate queries left out, as many pairs", _diversified("query")
    ),
    "diversified": Preset(
        "11", "symmetric query encoder, near-duplicate queries and documents left out", _diversified("both")
    ),
    "fine-tuning-only": Preset(
        "12",
        "symmetric query encoder without RetroMAE and the unsupervised stage",
        _both(without("retromae", "unsupervised"), _symmetric_query),
    ),
    "retromae-fine-tuning": Preset(
        "12", "symmetric query encoder without the unsupervised stage", _both(without("unsupervised"), _symmetric_query)
    ),
    "symmetric-query": Preset("4, 12", "the query encoder on both sides, twice the epochs", _symmetric_query),
    "symmetric-document": Preset("4", "the document encoder on both sides, twice the epochs", _symmetric_document),
    "kale": Preset(
        "7",
        "three layers of the document encoder, KL divergence",
        _pruned(contrastive_weight=0.0, mse_weight=0.0, kl_weight=1.0),
    ),
    "wang-lyu": Preset(
        "7", "three layers of the document encoder, embedding distance", _pruned(contrastive_weight=0.0)
    ),
    "pruned": Preset(
        "control",
        "the same three layers with Stage I's own objective: what those of KALE and Wang & Lyu change, and no more",
        _pruned(),
    ),
    "scalingnote": Preset(
        "7",
        "Stage I on queries alone by distance, no Stage II; the paper does not say how it was set up",
        _both(_with("align", sides=("query",), contrastive_weight=0.0), without("joint")),
    ),
    "distill": Preset("7", "a symmetric student learns the document encoder's scores", _distilled),
    "hotelmatch": Preset("7", "up-projection to the document's dimension, a tenth of the rate there", _up_projected),
    "longer-joint": Preset("control", "no Stage I, its epochs given to Stage II: equal data passes", _longer_joint),
    "equal-texts": Preset(
        "control", "no Stage I; Stage II sees as many texts more as Stage I would have", _instead_of_align("texts")
    ),
    "equal-compute": Preset(
        "control",
        "no Stage I; Stage II spends its floating-point operations, those of the teacher included",
        _instead_of_align("operations"),
    ),
}
