"""Write the pages of docs/reference that follow from the code. `--check` fails when one is out of date."""

import ast
import asyncio
import dataclasses
import inspect
import itertools
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from care_data import config as benchmark
from care_trainer import config
from care_trainer.config.stages import PairStage
from llama_index.embeddings import care as embeddings
from llama_index.postprocessor import care as postprocessor
from llama_index.vector_stores import care as vector_stores

import care_qdrant
from care_qdrant import CareModel, Document, errors
from care_qdrant.cli.verify import WATCH_GAUGES
from care_qdrant.contracts import metadata, payload
from care_qdrant.serve.app import Service
from care_qdrant.serve.metrics import Metrics
from care_qdrant.serve.settings import ServeSettings
from care_qdrant.types import Chunk

TARGET = Path(__file__).parent / "reference"
TOPICS = {
    "Models": ("model.", "encoders"),
    "Write": ("ingestion.", "corpus."),
    "Search": ("search.",),
    "Existing collections": ("vectors.", "switch.", "contracts."),
    "Move collections": ("versions.",),
    "Connect": ("qdrant.",),
    "Data": ("types", "progress"),
}
"""Headings of the Python page, and the modules (beginnings of their names) whose public names stand below each."""


def python_api() -> Iterator[str]:
    """Yield the page of all public names, by topic."""
    yield "# Python API\n\nImport these names from `care_qdrant`; what is not listed is internal and may change.\n"
    rest = set(care_qdrant.__all__) - {"__version__"}
    for topic, modules in TOPICS.items():
        yield f"## {topic}\n"
        for name in sorted(rest, key=str.lower):
            module = getattr(getattr(care_qdrant, name), "__module__", None) or ""
            home = care_qdrant._HOME.get(name, module.removeprefix("care_qdrant."))
            if home.startswith(modules):
                rest.remove(name)
                yield from _entry(name, getattr(care_qdrant, name))
    yield "## Errors\n\nThe tree of errors is in [exit codes](exit-codes.md).\n"
    yield "Import these from `care_qdrant.errors`; `CareError` is in `care_qdrant` as well.\n"
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.CareError)
    }
    for name in sorted(kinds, key=str.lower):
        yield from _entry(name, kinds[name])
    yield "## LlamaIndex\n"
    for package in (embeddings, vector_stores, postprocessor):
        for name in package.__all__:
            yield from _entry(f"{package.__name__}.{name}", getattr(package, name))


def _entry(name: str, value: Any) -> Iterator[str]:
    value = inspect.unwrap(value) if callable(value) and not inspect.isclass(value) else value
    if not inspect.isclass(value) and not inspect.isfunction(value):
        yield f"### `{name}`\n\n{_shown(value)}\n"
        return
    yield f"### `{name}`\n"
    if inspect.isfunction(value) or "__init__" in vars(value) or dataclasses.is_dataclass(value):
        yield f"```python\n{_signature(name.rpartition('.')[2], value)}\n```\n"
    yield _markdown(inspect.getdoc(value) or "") + "\n"
    if inspect.isclass(value) and not issubclass(value, errors.CareError):
        for method, function in sorted(_members(value).items()):
            function = getattr(function, "__func__", function)
            if method.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
                continue
            yield f"**`{_signature(method, function, own=True)}`**\n\n{_markdown(inspect.getdoc(function) or '')}\n"


def _members(value: type) -> dict[str, Any]:
    """Return what a class defines, and those of its bases that are parts of it: their names end with its own."""
    parts = [each for each in reversed(value.__mro__) if each.__name__.endswith(value.__name__)]
    return {name: member for part in parts for name, member in vars(part).items()}


def _shown(value: Any) -> str:
    return f"`{value!r}`" if isinstance(value, str | int | float | tuple) else f"`{_plain(str(value))}`"


def _signature(name: str, value: Callable[..., Any], *, own: bool = False) -> str:
    """Return a signature without the modules of its types; a long one has a line for each parameter."""
    signature = inspect.signature(value)
    parameters = [each for key, each in signature.parameters.items() if key not in ("self", "cls")]
    shown = [_parameter(each) for each in parameters]
    kinds = [each.kind for each in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    back = signature.return_annotation
    arrow = "" if inspect.isclass(value) or back is signature.empty else f" -> {_plain(inspect.formatannotation(back))}"
    line = f"{name}({', '.join(shown)}){arrow}"
    if len(line) <= 100 or own:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    text = _plain(str(parameter.replace(default=inspect.Parameter.empty)))
    if parameter.default is inspect.Parameter.empty:
        return text
    default = repr(parameter.default)
    is_plain = isinstance(parameter.default, str | int | float | tuple | None) and len(default) < 30
    return f"{text} = {default if is_plain else '…'}"


def _plain(text: str) -> str:
    """Return an annotation without the modules of its types, and without the quotes of a whole one."""
    text = text.strip("'") if text.count("'") == 2 and text.startswith("'") else text
    text = re.sub(r"numpy\.ndarray\[.*?dtype\[\S*?float32\]\]", "ndarray", text)
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", text)


def _markdown(docstring: str) -> str:
    """Return a docstring of Google's style as Markdown."""
    text = re.sub(r"``([^`]+)``", r"`\1`", docstring)
    text = re.sub(
        r"::\n\n((?: {4}.*\n?|\n)+)", lambda found: f":\n\n```text\n{inspect.cleandoc(found[1])}\n```\n", text
    )
    lines, is_list = [], False
    for line in text.splitlines():
        heading = re.match(r"(Args|Returns|Raises|Yields|Attributes|Example|Examples|Note):$", line)
        item = re.match(r" {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)", line)
        if heading:
            is_list = True
            lines += [f"*{heading[1]}*:", ""]
        elif item and is_list:
            lines.append(f"- `{item[1]}`: {item[2]}")
        else:
            is_list = is_list and (line.startswith(" ") or not line)
            lines.append(("  " + line.strip() if line.startswith("     ") else line.strip()) if is_list else line)
    return "\n".join(lines)


def exit_codes() -> Iterator[str]:
    """Yield the page of exit codes and the errors behind them."""
    tree = (errors.__doc__ or "").split("::\n\n")[1]
    tree, _, rest = tree.partition("\n\nExit code 8")
    yield "# Exit codes and errors\n\nEach error of the library ends the command with the exit code of its kind.\n"
    yield f"```text\n{inspect.cleandoc(tree)}\n```\n"
    yield f"Exit code 8{_markdown(rest)}\n"
    yield "What to do: [troubleshooting](../how-to/troubleshooting.md).\n"


def metrics() -> Iterator[str]:
    """Yield the page of the counters of `care serve` and the gauges of `care verify --every`."""
    yield "# Metrics\n\n`GET /metrics` of `care serve`, over all workers ([what to watch](../how-to/operate.md)).\n"
    yield "| metric | type | labels | meaning |\n|---|---|---|---|"
    for metric in vars(Metrics()).values():
        if hasattr(metric, "_documentation"):
            suffix = "_total" if metric._type == "counter" else ""
            labels = ", ".join(f"`{label}`" for label in metric._labelnames) or "–"
            yield f"| `{metric._name}{suffix}` | {metric._type} | {labels} | {metric._documentation} |"
    yield (
        "\n`/metrics` of `care verify --every SECONDS --metrics-port PORT` has gauges with the labels `collection` "
        "(the name in the command) and `vector`.\n\n| gauge | meaning |\n|---|---|"
    )
    yield from (f"| `{name}` | {what} |" for name, what in WATCH_GAUGES.items())
    yield ""


def http() -> Iterator[str]:
    """Yield the page of the paths of `care serve`, from its own description."""

    async def described() -> dict[str, Any]:
        service = Service(ServeSettings(load_models=list), [CareModel.load()])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(service.app), base_url="http://127.0.0.1") as client:
            answer: dict[str, Any] = (await client.get("/openapi.json")).json()
        return answer

    said = asyncio.run(described())
    schemas = said["components"]["schemas"]
    yield "# HTTP\n\nThe paths of `care serve`. A running service describes itself at `/openapi.json`.\n"
    for path, methods in said["paths"].items():
        for method, operation in methods.items():
            yield f"## `{method.upper()} {path}`\n\n{operation['summary']}\n"
            if "requestBody" in operation:
                yield from _fields("request", _schema(operation["requestBody"]), schemas)
            if "content" in operation["responses"]["200"]:
                yield from _fields("answer", _schema(operation["responses"]["200"]), schemas)
            refused = [status for status in operation["responses"] if status != "200"]
            if refused:
                yield f"Refused with {', '.join(refused)}.\n"


def _schema(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["content"]["application/json"]["schema"]
    return found


def _fields(what: str, schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if "properties" not in schema:
        yield f"The {what} is {_type(schema)}.\n"
        return
    yield f"| {what} | type | default | meaning |\n|---|---|---|---|"
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else f"`{json.dumps(field.get('default'))}`"
        default = default if what == "request" else ""
        yield f"| `{name}` | {_type(field)} | {default} | {field.get('description', '')} |"
    yield ""


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(each) for each in field["anyOf"]))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("type", "any"))


def payload_page() -> Iterator[str]:
    """Yield the page of what a point holds, with the payload of one document."""
    document = Document(
        "endo-006", "血糖平稳时可以吃少量水果。", title="糖尿病人能吃水果吗", metadata={"department": "内分泌科"}
    )
    example = payload.chunk_payload(Chunk(document, document.text, 0, 1), {"care-small": "9f2c…"})
    yield "# Payload\n\nWhat `care-ingest` writes to a point. `care attach` adds the key `_care` alone.\n"
    yield f"```json\n{json.dumps(example, ensure_ascii=False, indent=2)}\n```\n"
    yield (
        "| key | meaning |\n|---|---|\n"
        "| the metadata of the document | at the top level, so that filters find them |\n"
        "| `text`, `title` | the chunk, and the title of its document |\n"
        "| `doc_id`, `document_id`, `ref_doc_id` | the id of the document; the point's id is a UUID made of it |\n"
        "| `_node_type`, `_node_content` | what LlamaIndex's stock store reads |\n"
        "| `_care` | `chunk`: number of the chunk, from 0; `chunks`: how many the document has, where it has several; "
        "hashes of the texts behind each vector; `stand_ins`: learned encoders that made a vector of the point |\n"
    )
    rows = "".join(
        f"| `{key.name}{f':{key.about.upper()}' if key.about else ''}` | {key.holds} | {key.written_by} | "
        f"{key.lifetime} |\n"
        for key in metadata.KEYS
    )
    yield (
        "The metadata of the **collection** hold these keys:\n\n"
        f"| key | holds | written by | stays |\n|---|---|---|---|\n{rows}\n"
        "An entry of a *vector* stays until the vector is removed; one that was *measured* is also made again when a "
        "quarter\nof the points have come or gone. One of *work* goes when the work has ended. A copy gets no entry of "
        "*work* or of the\n*collection* itself.\n"
    )


HEADED: dict[type, set[str]] = {
    config.Run: {"query", "document", "data", "stage", "vocabulary", "evaluation", "export"},
    benchmark.Settings: {"source", "pool", "retriever", "judging", "judge", "vote", "build", "sts"},
}
"""Keys of the top that are tables with a heading of their own."""
TRAINING_TABLES: dict[str, type] = {
    "[tasks.NAME]": config.Task,
    "[query]` and `[document]": config.Tower,
    "[query.scratch]` and `[document.scratch]": config.Scratch,
    "[document.collection]": config.StoredDocuments,
    "[document.lora]": config.Lora,
    "[vocabulary]": config.Vocabulary,
    "[data.NAME]": config.Data,
    "[data.NAME.diversify]": config.Diversify,
    "[evaluation]": config.Evaluation,
    "[export]": config.Export,
}
"""The tables of a training configuration below its top and beside its stages."""


def training_keys() -> Iterator[str]:
    """Yield the page of the keys of a training configuration."""
    yield (
        "# Keys of a training configuration\n\nAn example: [the whole recipe](../how-to/train-recipe.md). In brackets: "
        "a table or section of arXiv 2604.10937; *open*\nwhere the paper gives no value. Fractions are of 1; *none* "
        "means that the key is left out.\n"
    )
    yield from _tables(config.Run, TRAINING_TABLES)
    yield from _keys("`[[stage]]`, of every kind", config.Stage)
    shared = {field.name for field in dataclasses.fields(PairStage)}
    pairs = {kind for kind, stage in config.STAGE_TYPES.items() if issubclass(stage, PairStage)}
    yield from _keys(f"`[[stage]]` of kind {', '.join(sorted(pairs))}", PairStage)
    for stage in dict.fromkeys(config.STAGE_TYPES.values()):
        kinds = [kind for kind, each in config.STAGE_TYPES.items() if each is stage]
        if not issubclass(stage, PairStage) or {field.name for field in dataclasses.fields(stage)} - shared:
            yield from _keys(f"`[[stage]]` of kind {', '.join(kinds)}", stage)


BENCHMARK_TABLES: dict[str, type] = {
    "[source]": benchmark.Source,
    "[pool]": benchmark.Pool,
    "[[retriever]]": benchmark.Retriever,
    "[[judge]]` and `[sts.writer]": benchmark.Judge,
    "[judging]": benchmark.Judging,
    "[vote]": benchmark.Vote,
    "[[vote.imported]]": benchmark.Imported,
    "[sts]": benchmark.Sts,
    "[build]": benchmark.Build,
}
"""The tables of a configuration of `care data`."""


def benchmark_keys() -> Iterator[str]:
    """Yield the page of the keys of a configuration of `care data`."""
    yield (
        "# Keys of a `care data` configuration\n\nAn example: [make a benchmark](../how-to/make-a-benchmark.md). In "
        "brackets: a section of arXiv 2604.10937.\nFractions are of 1; *none* means that the key is left out.\n"
    )
    yield from _tables(benchmark.Settings, BENCHMARK_TABLES)


def _tables(top: type, tables: Mapping[str, type]) -> Iterator[str]:
    """Yield the keys of the top of a file and of tables, by their headings."""
    yield from _keys("The top of the file", top)
    for heading, table in tables.items():
        yield from _keys(f"`{heading}`", table)


def _keys(heading: str, table: type) -> Iterator[str]:
    """Yield the keys that a table adds to those of its base class; keys that are tables have a heading of their own."""
    yield f"## {heading}\n\n{_markdown(inspect.getdoc(table) or '')}\n"
    yield "| key | value | default | meaning |\n|---|---|---|---|"
    about, kinds = _attribute_docstrings(table), typing.get_type_hints(table, include_extras=True)
    own = vars(table)["__annotations__"].keys() - HEADED.get(table, set()) - ({"kind"} - about.keys())
    for field in (field for field in dataclasses.fields(table) if field.name in own):
        name = field.name
        yield f"| `{name}` | {_value(kinds[name])} | {_default(field)} | {_markdown(about[name])} |"
    yield ""


def _attribute_docstrings(table: type) -> dict[str, str]:
    body = ast.parse(inspect.getsource(table)).body[0].body  # type: ignore[attr-defined]  # a class
    return {
        name.target.id: " ".join(text.value.value.split())
        for name, text in itertools.pairwise(body)
        if isinstance(name, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def _value(kind: Any) -> str:
    """Return what a key may hold, in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        rules = [dataclasses.asdict(rule) for field in arguments[1:] for rule in field.metadata]
        signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤", "min_length": "at least"}
        bounds = [f"{signs[name]} {limit}" for rule in rules for name, limit in rule.items() if name in signs]
        return ", ".join([_value(arguments[0]), *(["not empty"] if arguments[0] is str else bounds)])
    if origin in (typing.Union, types.UnionType):
        return _value(next(one for one in arguments if one is not type(None)))
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return f"list: {_value(arguments[0])}"
    if origin is dict:
        return f"table: {_value(arguments[1])}"
    names = {str: "text", int: "integer", float: "number", bool: "boolean"}
    return names.get(kind, "table")


def _default(field: "dataclasses.Field[Any]") -> str:
    """Return the default of a key of a pydantic dataclass."""
    value = field.default
    if value is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else "empty"
    if getattr(value, "default_factory", None) is not None or value in ("", ()):
        return "empty"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else ", ".join(value) if isinstance(value, tuple) else str(value)


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "api.md": python_api,
    "exit-codes.md": exit_codes,
    "http.md": http,
    "metrics.md": metrics,
    "payload.md": payload_page,
    "training-keys.md": training_keys,
    "benchmark-keys.md": benchmark_keys,
}


if __name__ == "__main__":
    texts = {TARGET / name: "\n".join(page()).rstrip() + "\n" for name, page in PAGES.items()}
    if "--check" in sys.argv:
        stale = [path.name for path, text in texts.items() if not path.is_file() or path.read_text("utf-8") != text]
        sys.exit(f"docs/reference is out of date ({', '.join(stale)}): make docs" if stale else 0)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
