"""Presets: the paper's comparisons as TOML overlays of a run, with the same data and models and one thing different.

An overlay has the keys of a run, which replace the run's own, and these of its own:

- ``table``, ``description``: where the comparison comes from, and what it changes.
- ``extends``: a preset that is applied first.
- ``drop``: kinds of stages that are left out.
- ``[stage.KIND]``: settings of all stages of a kind. There must be one.
- ``[[insert]]``: a stage that is added ``before`` a kind, or at the end; ``copy_of`` takes over a stage's settings.

A text that starts with ``= `` is computed from the run before the change: ``= joint.epochs + align.epochs``. Where a
kind is expected there may be one of the words in `_kinds`. A missing stage is refused, but for a reference with ``?``.
"""

import dataclasses
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from care_qdrant.errors import InputError
from care_trainer.config.load import parse_run, problems_of, read_toml, refusal
from care_trainer.config.run import Run
from care_trainer.config.stages import STAGE_TYPES

PRUNED_LAYERS = 3
"""Layers of the document encoder that a pruned query encoder keeps; a smaller one keeps half of its layers."""
_OPERATORS = {"+": operator.add, "*": operator.mul, "/": operator.truediv}

Values = dict[str, Any]


class _Overlay(BaseModel):
    """The keys of an overlay that are its own; the others are those of a run."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    table: str = ""
    description: str = ""
    extends: str | None = None
    drop: tuple[str, ...] = ()
    stage: dict[str, Values] = Field(default_factory=dict)
    insert: tuple[Values, ...] = ()


def _read(path: Path) -> _Overlay:
    try:
        return _Overlay.model_validate_json(json.dumps(read_toml(path), default=str))
    except ValidationError as error:
        raise refusal(str(path), problems_of(error)) from None


@dataclass(frozen=True)
class Preset:
    """A named change of a run."""

    table: str
    """Table of arXiv 2604.10937, ``control`` for what the paper lacks, or ``–``."""
    description: str
    """What the preset changes, in one line."""
    path: Path
    """File of the overlay."""


def _shipped() -> dict[str, Preset]:
    found = {}
    for path in sorted(Path(str(files("care_trainer") / "presets")).glob("*.toml")):
        overlay = _read(path)
        found[path.stem] = Preset(overlay.table, overlay.description, path)
    return dict(sorted(found.items(), key=lambda item: _first_table(item[1])))


def _first_table(preset: Preset) -> int:
    first = preset.table.split(",")[0]
    return int(first) if first.isdigit() else 100


PRESETS: dict[str, Preset] = _shipped()


def apply_preset(run: Run, name: str) -> Run:
    """Return the run with a preset's change, under its own name and output folder."""
    path = _path(name)
    values = _apply(json.loads(json.dumps(dataclasses.asdict(run))), path)
    own = {"name": f"{run.name}-{path.stem}", "output": f"{run.output}-{path.stem}"}
    return parse_run({**values, **own}, f"{run.name} with preset {name}")


def _path(name: str) -> Path:
    if name in PRESETS:
        return PRESETS[name].path
    if Path(name).suffix == ".toml" and Path(name).is_file():
        return Path(name)
    raise InputError(f"--preset {name}: there is no such preset (there are: {', '.join(PRESETS)}), and no such file")


def _apply(values: Values, path: Path) -> Values:
    overlay = _read(path)
    if overlay.extends is not None:
        values = _apply(values, _path(overlay.extends))
    dropped = {kind for word in overlay.drop for kind in _kinds(values, word)}
    changed = {_changed_kind(values, word): own for word, own in overlay.stage.items()}
    inserted = [_inserted(values, dict(item)) for item in overlay.insert]
    stages: list[Values] = []
    for stage in values["stage"]:
        stages += [new for before, new in inserted if before is stage]
        if stage["kind"] not in dropped:
            stages.append(_merged(values, stage, changed.get(stage["kind"], {})))
    stages += [new for before, new in inserted if before is None]
    return {**_merged(values, values, overlay.model_extra or {}), "stage": stages}


def _kinds(values: Values, word: str) -> tuple[str, ...]:
    """Return the kinds of stages that a word of an overlay stands for."""
    # A static table is the initialisation of the query encoder alone where the document encoder is pretrained.
    static = ("static",) if values["document"]["base"] is not None else ()
    groups = {
        "query-initialisation": (*static, "retromae", "unsupervised", "supervised"),
        "query-training": (*static, "supervised"),
        "pair-training": ("supervised", "joint"),
    }
    if word not in groups and word not in STAGE_TYPES:
        raise InputError(f"the preset names a stage {word!r}; expected one of {', '.join([*groups, *STAGE_TYPES])}")
    return groups.get(word, (word,))


def _stage(values: Values, word: str) -> Values:
    """Return the first stage of a kind, or the last of a group of kinds."""
    kinds = _kinds(values, word)
    found: list[Values] = [stage for stage in values["stage"] if stage["kind"] in kinds]
    if not found:
        raise InputError(f"{values['name']}: has no stage {' or '.join(map(repr, kinds))}, which the preset changes")
    return found[0] if kinds == (word,) else found[-1]


def _changed_kind(values: Values, word: str) -> str:
    absent = all(stage["kind"] != "document" for stage in values["stage"])
    if word == "document" and absent and values["document"]["base"] is not None:
        return word  # pretrained, and trained no further
    return str(_stage(values, word)["kind"])


def _inserted(values: Values, item: Values) -> tuple[Values | None, Values]:
    """Return the stage that a new one goes before, or None for the end, and the new one."""
    before = _stage(values, item.pop("before")) if "before" in item else None
    copied = _stage(values, item.pop("copy_of")) if "copy_of" in item else {}
    if item.get("kind") not in STAGE_TYPES:
        raise InputError(f"the preset inserts a stage of kind {item.get('kind')!r}; expected {', '.join(STAGE_TYPES)}")
    kept = {field.name for field in dataclasses.fields(STAGE_TYPES[item["kind"]])} - {"kind", "name"}
    return before, _merged(values, {key: value for key, value in copied.items() if key in kept}, item)


def _merged(values: Values, base: Mapping[str, Any] | None, changes: Mapping[str, Any]) -> Values:
    """Return a table with changes, table by table; the formulas in them are computed from the run's values."""
    merged = dict(base or {})
    for key, change in changes.items():
        name = _computed(values, key)
        nested = isinstance(change, dict)
        merged[name] = _merged(values, merged.get(name), change) if nested else _computed(values, change)
    return merged


def _computed(values: Values, value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("= "):
        return value
    first, *rest = value.removeprefix("= ").split()
    try:
        result = _reference(values, first)
        if rest:
            operation, right = rest
            result = _OPERATORS[operation](result, _reference(values, right))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the preset's {value!r} cannot be computed ({error}); expected a setting as in '= joint.epochs', "
            "or two terms with +, * or / between them"
        ) from error
    return result


def _reference(values: Values, name: str) -> Any:
    """Return a number, a stage, a setting of a stage (``align.epochs``), or a figure of the document encoder."""
    if name.isdigit():
        return int(name)
    word, _, key = name.removesuffix("?").partition(".")
    if word == "document" and key in ("hidden", "pruned-layers"):
        return _hidden(values) if key == "hidden" else _pruned_layers(values)
    if name.endswith("?") and all(stage["kind"] != word for stage in values["stage"]):
        return None
    stage = _stage(values, word)
    if key == "name":
        return stage["name"] or stage["kind"]
    return stage[key] if key else stage


def _pruned_layers(values: Values) -> int:
    scratch = values["document"]["scratch"]
    return PRUNED_LAYERS if scratch is None else min(PRUNED_LAYERS, scratch["layers"] // 2)


def _hidden(values: Values) -> int:
    document = values["document"]
    if document["scratch"] is not None:
        return int(document["scratch"]["hidden"])
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(document["base"], revision=document["revision"]).hidden_size)
