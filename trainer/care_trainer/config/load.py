"""TOML to a checked `Run`: all problems of a file in one error, with the known keys, and no torch imported."""

import dataclasses
import json
import tomllib
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from care_qdrant.errors import InputError, counted
from care_trainer.config.run import BASE, COLLECTION, ROWS, Run, Tower
from care_trainer.config.stages import STAGE_TYPES, Align, Joint, PairStage, Stage, Static, stage_name

_EXPECTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
    "literal_error": "one of {expected}",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "string_too_short": "a text that is not empty",
    "too_short": "a list with at least {min_length} value",
}
"""Phrases for expected values in messages, by pydantic's error type."""

_QUERY_STAGES = ("align", "retromae", "unsupervised", "supervised")
"""Stages that load no document encoder."""


def load_run(path: Path, overrides: Sequence[str] = ()) -> Run:
    """Read a run from a TOML file."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; the shipped configurations are listed by: care-train configs")
    values = read_toml(path)
    for override in overrides:
        _override(values, override)
    return parse_run(values, str(path))


def parse_run(values: Mapping[str, Any], where: str) -> Run:
    """Parse the values of a run."""
    try:
        run = TypeAdapter(Run).validate_json(json.dumps(values, default=str))
        problems = list(_contradictions(run))
    except ValidationError as error:
        raise refusal(where, problems_of(error)) from None
    if problems:
        raise refusal(where, problems)
    return run


def refusal(where: str, problems: Sequence[str]) -> InputError:
    """Return the error that reports all problems of a file."""
    return InputError(f"{where}: " + "\n  ".join([counted(len(problems), "problem"), *problems]))


def problems_of(error: ValidationError, root: type = Run) -> list[str]:
    """Return one line for each of pydantic's errors: where, what was expected, and what was found."""
    return [_problem(detail, root) for detail in error.errors(include_url=False)]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or brackets
        raise InputError(f"{path}: not TOML ({error})") from error


def shipped_configs() -> list[Path]:
    """Return the files of the shipped configurations, sorted by name."""
    return sorted(Path(str(files("care_trainer") / "configs")).glob("*.toml"))


def find_config(config: str) -> Path:
    """Return the file of a configuration."""
    if Path(config).suffix == ".toml":
        return Path(config)
    for path in shipped_configs():
        if path.stem == config:
            return path
    raise InputError(f"{config}: neither a .toml file nor a shipped configuration (see: care-train configs)")


def _override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator:
        raise InputError(f"--set {override}: expected key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    *parents, leaf = key.strip().split(".")
    target: Any = values
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


def _problem(error: ErrorDetails, root: type) -> str:
    kind, context, loc = error["type"], error.get("ctx", {}), error["loc"]
    where = _where(loc)
    if kind == "unexpected_keyword_argument":
        return f"{where}: unknown key (known: {', '.join(_known_keys(loc[:-1], root))})"
    if kind == "missing":
        return f"{where}: missing"
    if kind == "union_tag_not_found":
        return f"{where}.kind: missing (known: {', '.join(STAGE_TYPES)})"
    if kind == "union_tag_invalid":
        return f"{where}.kind: {context['tag']!r} is not a stage (known: {', '.join(STAGE_TYPES)})"
    if "expected" in context:
        context = {"expected": context["expected"].replace(" or ", ", ")}
    expected = _EXPECTED[kind].format(**context) if kind in _EXPECTED else error["msg"]
    return f"{where or 'the file'}: expected {expected}, found {error['input']!r}"


def _where(loc: Sequence[str | int]) -> str:
    """Join the parts of a path, ``stage[1].margin``; pydantic puts a stage's kind after its number."""
    tagged = len(loc) > 2 and loc[0] == "stage"
    parts = [*loc[:2], *loc[3:]] if tagged else loc
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _known_keys(loc: Sequence[str | int], root: type) -> list[str]:
    """Return the keys of the table at a path."""
    kind: Any = root
    for part in loc:
        if part in STAGE_TYPES and not dataclasses.is_dataclass(kind):
            kind = STAGE_TYPES[str(part)]
        elif dataclasses.is_dataclass(kind):
            kind = typing.get_type_hints(kind)[str(part)]
        else:
            kind = typing.get_args(kind)[typing.get_origin(kind) is dict]
        if typing.get_origin(kind) is types.UnionType and type(None) in typing.get_args(kind):
            kind = typing.get_args(kind)[0]
    return [field.name for field in dataclasses.fields(kind)]


def _contradictions(run: Run) -> Iterator[str]:
    """Yield the problems that only several values together show."""
    for side, tower in (("query", run.query), ("document", run.document)):
        yield from _tower_problems(side, tower, run)
    yield from _name_problems(run)
    referred = [(f"stage.{stage_name(stage)}.data", stage.data) for stage in run.stage if stage.kind != "prune"]
    referred += [("vocabulary.data", run.vocabulary.data)] if run.vocabulary else []
    referred += [("export.probe", run.export.probe)] if run.export.probe else []
    known = [*run.data, *([COLLECTION] if run.document.collection else [])]
    for where, name in referred:
        if name not in known:
            yield f"{where}: unknown data set {name!r} (known: {', '.join(known)})"
    for name, data in run.data.items():
        for source, task in data.tasks.items():
            if task not in run.tasks:
                yield f"data.{name}.tasks.{source}: unknown task {task!r} (known: {', '.join(run.tasks)})"
    for stage in run.stage:
        yield from _stage_problems(f"stage.{stage_name(stage)}", stage, run)
    yield from _collection_problems(run)


def _name_problems(run: Run) -> Iterator[str]:
    """Yield names that two folders below the output would share, and those that are not the name of one folder."""
    stages = Counter(stage_name(stage) for stage in run.stage)
    for name, count in stages.items():
        if count > 1:
            yield f"stage.{name}: used {count} times; give each stage its own name"
        if name in (BASE, ROWS):
            yield f"stage.{name}: is a folder that every run writes; give the stage another name"
    if run.name in (BASE, ROWS, *stages):
        yield f"name: {run.name!r} is also the folder of a stage or of the run's inputs; give the model another name"
    for where, name in [("name", run.name), *((f"stage.{name}.name", name) for name in stages)]:
        if not name.isprintable() or name != Path(name).name or name == "..":
            yield f"{where}: expected the name of one folder below the output, found {name!r}"


def _collection_problems(run: Run) -> Iterator[str]:
    """Yield the settings that do not fit documents that are vectors of a collection."""
    if run.document.collection is None:
        return
    if run.document.collection.url is not None and run.document.collection.path is not None:
        yield "document.collection: give url or path, not both"
    if COLLECTION in run.data:
        yield f"data.{COLLECTION}: is the name of the collection's texts; give the data set another name"
    refused = {
        "evaluation": (run.evaluation, "held-out documents of the collection measure the query encoder"),
        "symmetric": (run.symmetric, "there is one encoder"),
        "teacher_jobs": (run.teacher_jobs, "the collection holds the vectors"),
        "geometry": (run.geometry == "cut", "stored vectors are compared by their directions"),
    }
    for key, (value, reason) in refused.items():
        if value:
            yield f"{key}: not with a [document.collection]: {reason}"
    for stage in run.stage:
        where = f"stage.{stage_name(stage)}"
        if stage.kind not in _QUERY_STAGES:
            yield f"{where}: needs a document encoder; with a [document.collection], {', '.join(_QUERY_STAGES)} do not"
        if isinstance(stage, Align) and (stage.data != COLLECTION or stage.pairs or stage.teacher_prompt is not None):
            yield f"{where}: with a [document.collection], expected data = {COLLECTION!r}, no pairs, no teacher_prompt"


def _frozen_problems(where: str, stage: Stage, run: Run) -> Iterator[str]:
    """Yield what does not fit a stage whose documents are encoded once, or as means of tokens."""
    data = run.data.get(stage.data)
    tasks = {name for name in (data.tasks.values() if data else ()) if name in run.tasks and run.tasks[name].document}
    if tasks and _stores_documents(stage):
        named = ", ".join(sorted(tasks))
        yield f"{where}: its documents are encoded once, with one prompt; task {named} has a document prompt"
    for side, tower in (("query", run.query), ("document", run.document)):
        if isinstance(stage, Static) and tower.scratch is not None and tower.pooling != "mean":
            yield f"{where}: needs {side}.pooling = 'mean', found {tower.pooling!r}, the mean of tokens"


def _stage_problems(where: str, stage: Stage, run: Run) -> Iterator[str]:
    if stage.batch_size is not None and stage.global_batch_size is not None:
        yield f"{where}: give batch_size or global_batch_size, not both"
    if isinstance(stage, PairStage) and stage.matryoshka and run.dim not in stage.matryoshka:
        dimensions = ", ".join(map(str, stage.matryoshka))
        yield f"{where}.matryoshka: expected dim {run.dim} among the dimensions, found {dimensions}"
    is_measured = run.evaluation is not None or run.document.collection is not None
    if stage.evaluate_steps is not None and (not is_measured or stage.kind in ("retromae", "static")):
        yield f"{where}.evaluate_steps: needs an [evaluation] and a stage that trains for retrieval"
    yield from _frozen_problems(where, stage, run)
    if isinstance(stage, Static) and stage.lead_tokens is not None:
        shape, width = run.document.scratch, run.query.static or run.dim
        if shape is None or shape.architecture != "bert" or shape.hidden < width + 2:
            yield f"{where}.lead_tokens: needs document.scratch with architecture = 'bert' and hidden above {width}"
        if stage.compose:
            yield f"{where}.lead_tokens: needs compose = false, since positions count whole tokens"
    if stage.patience is not None and stage.evaluate_steps is None:
        yield f"{where}.patience: needs evaluate_steps"


def _stores_documents(stage: Stage) -> bool:
    """Return whether a stage trains against vectors of documents that were computed before it."""
    is_frozen = isinstance(stage, Joint) and stage.freeze_document and not stage.crop
    return is_frozen or (isinstance(stage, Align) and stage.pairs)


def _tower_problems(side: str, tower: Tower, run: Run) -> Iterator[str]:
    if [tower.base, tower.scratch, tower.static, tower.collection].count(None) != 3:
        yield f"{side}: give exactly one of base, scratch and {'static' if side == 'query' else 'collection'}"
    if tower.static is not None and side == "document":
        yield "document.static: only a query encoder can be static"
    if tower.collection is not None and side == "query":
        yield "query.collection: only documents can be read from a collection"
    yield from _base_problems(side, tower)
    for key in ("static", "scratch"):
        if getattr(tower, key) is not None and run.vocabulary is None:
            yield f"{side}.{key}: needs a [vocabulary] to train the tokenizer"
    if (shape := tower.scratch) is None:
        return
    if shape.hidden % shape.heads:
        yield f"{side}.scratch: hidden {shape.hidden} is not a multiple of heads {shape.heads}"
    if shape.hidden < run.dim and not tower.projection:
        yield f"{side}.scratch.hidden: {shape.hidden} is smaller than dim {run.dim}"
    if tower.max_tokens > shape.positions:
        yield f"{side}.max_tokens: {tower.max_tokens} is more than its {shape.positions} positions"


def _base_problems(side: str, tower: Tower) -> Iterator[str]:
    for key in ("dtype", "attn_implementation", "quantization"):
        if getattr(tower, key) is not None and tower.base is None:
            yield f"{side}.{key}: only for a base"
    if tower.pooling == "own" and tower.base is None:
        yield f"{side}.pooling: 'own' is the pooling of a base"
    if tower.quantization is not None and tower.lora is None:
        yield f"{side}.quantization: needs lora; quantised weights do not train"
