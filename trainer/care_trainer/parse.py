"""From TOML to a checked `Run`: every problem of the file is reported at once, with the keys that are known."""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from care_qdrant.errors import InputError
from care_trainer.config import STAGE_TYPES, Run, Stage, Tower


def load_run(path: Path, overrides: Sequence[str] = ()) -> Run:
    """Read a run from a TOML file.

    Args:
        path: Of the file.
        overrides: ``key=value`` with a TOML value, or a bare string: ``seed=1``, ``stage.joint.epochs=2``.

    Raises:
        InputError: the file is missing or not TOML, or a key or a value is wrong; all problems in one message.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; the shipped configurations are listed by: care-train configs")
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML ({error})") from error
    for override in overrides:
        _override(raw, override)
    problems: list[str] = []
    run = _build(Run, raw, "", problems)
    if isinstance(run, Run):
        _check(run, problems)
    if problems:
        raise InputError(f"{path}: " + "\n  ".join([f"{len(problems)} problem(s)", *problems]))
    assert isinstance(run, Run)
    return run


def _override(raw: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator:
        raise InputError(f"--set {override}: expected key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, leaf = key.strip().split(".")
    target: Any = raw
    for parent in parents:
        target = _child(target, parent, override)
    if not isinstance(target, dict):
        raise InputError(f"--set {override}: {'.'.join(parents)} is not a table")
    target[leaf] = value


def _child(target: Any, key: str, override: str) -> Any:
    if isinstance(target, dict):
        return target.setdefault(key, {})
    for item in target if isinstance(target, list) else ():
        if key in (item.get("name"), item.get("kind")):
            return item
    raise InputError(f"--set {override}: there is no {key!r}")


def _build(kind: type, raw: Any, where: str, problems: list[str]) -> Any:
    """Build a dataclass from a table; on a problem, note it and give None."""
    if not isinstance(raw, Mapping):
        problems.append(f"{where or 'the file'}: expected a table, found {raw!r}")
        return None
    if kind is Stage:
        stage_kind = raw.get("kind")
        if stage_kind not in STAGE_TYPES:
            problems.append(f"{where}.kind: {stage_kind!r} is no stage (known: {', '.join(STAGE_TYPES)})")
            return None
        kind = STAGE_TYPES[stage_kind]
    hints = typing.get_type_hints(kind)
    known = {item.name: item for item in dataclasses.fields(kind)}
    before = len(problems)
    for key in raw:
        if key not in known:
            problems.append(f"{_join(where, key)}: unknown key (known: {', '.join(known)})")
    for name, item in known.items():
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if required and name not in raw:
            problems.append(f"{_join(where, name)}: missing")
    values = {key: _value(hints[key], raw[key], _join(where, key), problems) for key in raw if key in known}
    return kind(**values) if len(problems) == before else None


def _value(hint: Any, raw: Any, where: str, problems: list[str]) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _value(next(option for option in arguments if option is not type(None)), raw, where, problems)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), raw, where, problems)
    if origin is tuple:
        if not isinstance(raw, list):
            return _wrong("a list", raw, where, problems)
        return tuple(_value(arguments[0], item, f"{where}[{number}]", problems) for number, item in enumerate(raw))
    if origin is dict:
        if not isinstance(raw, Mapping):
            return _wrong("a table", raw, where, problems)
        return {key: _value(arguments[1], item, _join(where, key), problems) for key, item in raw.items()}
    if origin is typing.Literal:
        return raw if raw in arguments else _wrong(f"one of {', '.join(map(repr, arguments))}", raw, where, problems)
    if hint is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw)
    if not isinstance(raw, hint) or (isinstance(raw, bool) and hint is not bool):
        return _wrong(
            {"str": "a string", "int": "a whole number", "float": "a number"}.get(hint.__name__, "true or false"),
            raw,
            where,
            problems,
        )
    return raw


def _wrong(expected: str, found: Any, where: str, problems: list[str]) -> None:
    problems.append(f"{where}: expected {expected}, found {found!r}")


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def stage_name(stage: Stage) -> str:
    """Give the folder name of a stage."""
    return stage.name or stage.kind


def _check(run: Run, problems: list[str]) -> None:
    """Check what one value alone cannot show."""
    for side, tower in (("query", run.query), ("document", run.document)):
        problems.extend(_tower_problems(side, tower, run))
    names = [stage_name(stage) for stage in run.stage]
    problems.extend(
        f"stage.{name}: used {names.count(name)} times; give each stage its own name"
        for name in sorted(set(names))
        if names.count(name) > 1
    )
    referred = [(f"stage.{stage_name(stage)}.data", stage.data) for stage in run.stage if stage.kind != "prune"]
    referred += [("vocabulary.data", run.vocabulary.data)] if run.vocabulary else []
    referred += [("export.probe", run.export.probe)] if run.export.probe else []
    problems.extend(
        f"{where}: there is no data set {name!r} (there are: {', '.join(run.data)})"
        for where, name in referred
        if name not in run.data
    )


def _tower_problems(side: str, tower: Tower, run: Run) -> list[str]:
    problems = []
    if [tower.base, tower.scratch, tower.static].count(None) != 2:
        problems.append(f"{side}: give exactly one of base, scratch and static")
    if tower.static is not None and side == "document":
        problems.append("document.static: only a query encoder can be static")
    if tower.static is not None and run.vocabulary is None:
        problems.append(f"{side}.static: needs a [vocabulary] to train the tokenizer")
    if tower.scratch is not None:
        if run.vocabulary is None:
            problems.append(f"{side}.scratch: needs a [vocabulary] to train the tokenizer")
        if tower.scratch.hidden % tower.scratch.heads:
            problems.append(
                f"{side}.scratch: hidden {tower.scratch.hidden} is no multiple of heads {tower.scratch.heads}"
            )
        if tower.scratch.hidden < run.dim and not tower.projection:
            problems.append(f"{side}.scratch.hidden: {tower.scratch.hidden} is smaller than dim {run.dim}")
        if tower.max_tokens > tower.scratch.positions:
            problems.append(
                f"{side}.max_tokens: {tower.max_tokens} is more than its {tower.scratch.positions} positions"
            )
    return problems
