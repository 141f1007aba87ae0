"""The evaluated systems: a model, its symmetric controls, BM25 and the hybrid of both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from care_qdrant import CareModel, Engine, Mode, Precision
from care_qdrant.encoders.terms.analyser import DEFAULT
from care_qdrant.errors import InputError
from care_qdrant.model.card import CARD_FILE
from care_qdrant.model.hub import fetch_document_side

Control = Literal["bm25", "hybrid", "document", "query"]


@dataclass(frozen=True, slots=True)
class EvaluatedSystem:
    """One opened system of a run."""

    name: str
    description: str
    model: CareModel
    """The evaluated model; for BM25, the model whose collection also holds the sparse vectors (its search does not use
    the model)."""
    source: str
    """Folder or hub name that the model was loaded from."""
    precision: Precision
    device: str | None
    """Device of torch encoders; None selects the best available one."""
    mode: Mode
    query_parameters: int
    document_parameters: int
    borrows_index: bool = False
    """Whether it searches the vectors of the model whose document encoder it shares, so that nothing is encoded twice.
    LlamaIndex would refuse that, since the fingerprints differ."""

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the weights, or the name of the analyser for BM25."""
        return DEFAULT.name if self.mode == "sparse" else self.model.fingerprint

    @property
    def dim(self) -> int:
        """Return the length of the dense vector, 0 if there is none."""
        return 0 if self.mode == "sparse" else self.model.dim


def load_systems(
    sources: Sequence[str],
    controls: Sequence[Control],
    engine: Engine | None = None,
    *,
    precision: Precision = "auto",
    device: str | None = None,
) -> list[EvaluatedSystem]:
    """Open the models, then the controls of the first model; the first system is the base of all comparisons.

    The engine encodes the documents of the first model.
    """
    if not sources:
        raise InputError("no model is given: pass at least one --model")
    engines = [engine or Engine(), *[Engine()] * (len(sources) - 1)]
    models = [_dense(source, precision, device, its) for source, its in zip(sources, engines, strict=True)]
    for model in models:
        model.model.require_documents()  # before anything of the result is written
    systems = models + [_control(control, models[0]) for control in controls]
    names = [system.name for system in systems]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"two systems have the name {min(twice)!r}; give each model's folder a name of its own")
    return systems


def _dense(source: str, precision: Precision, device: str | None, engine: Engine) -> EvaluatedSystem:
    model = CareModel.load(source, device=device, precision=precision, engine=engine)
    folder = fetch_document_side(source)
    sides = [folder, folder] if model.card is None else [folder / "query", folder / "document"]
    return EvaluatedSystem(
        name=model.name,
        description="one encoder on both sides" if model.card is None else "asymmetric model",
        model=model,
        source=source,
        precision=precision,
        device=device,
        mode="dense",
        query_parameters=_count_parameters(sides[0]),
        document_parameters=_count_parameters(sides[1]),
    )


def _control(control: Control, base: EvaluatedSystem) -> EvaluatedSystem:
    if control == "bm25":
        what = "characters and pairs of Han text; no model"
        return replace(base, name="BM25", description=what, mode="sparse", query_parameters=0, document_parameters=0)
    if control == "hybrid":
        return replace(base, name=f"{base.name} + BM25", description="both scores, weighted", mode="hybrid")
    folder = fetch_document_side(base.source)
    if not (folder / CARD_FILE).is_file():
        raise InputError(f"{base.source}: is one encoder, not a model of two; it is its own control {control!r}")
    twice = _dense(str(folder / control), "auto", base.device, Engine())
    twice = replace(twice, name=f"{base.name}, {control} encoder twice", description="symmetric control")
    return twice if control == "query" else _over_index_of(base, twice)


def _over_index_of(base: EvaluatedSystem, control: EvaluatedSystem) -> EvaluatedSystem:
    """Let the document encoder search the vectors that it has made for the model."""
    both, symmetric = base.model, control.model
    model = CareModel(
        name=both.name,
        dim=both.dim,
        fingerprint=both.fingerprint,
        temperature=both.temperature,
        query=symmetric.query,
        document=both.document,
    )
    return replace(control, model=model, borrows_index=True)


def _count_parameters(folder: Path) -> int:
    """Count the weights in the safetensors files of one encoder, from their headers."""
    from safetensors import safe_open

    total = 0
    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(str(file), framework="np") as tensors:
            for key in tensors.keys():  # noqa: SIM118  # not a mapping
                total += math.prod(tensors.get_slice(key).get_shape())
    return total
