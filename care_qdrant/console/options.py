"""Options that several commands share."""

import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from care_qdrant.console.configuration import default_of
from care_qdrant.console.groups import Option
from care_qdrant.console.trust import came_from_file, environment_key, warn_of_foreign_folder, warn_of_plain_http
from care_qdrant.encoders.terms.languages import FUNCTION_WORDS, LANGUAGES
from care_qdrant.errors import COMPLETE, redact
from care_qdrant.patience import PATIENCE_SECONDS, START_PATIENCE_SECONDS
from care_qdrant.qdrant.quantization import QUANTIZATION, sizes_in_words

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

    from care_qdrant.encoders.engine import Engine
    from care_qdrant.model.care_model import CareModel, Precision
    from care_qdrant.qdrant.retry import RetryPolicy
    from care_qdrant.search.fallback import Fallback

Command = TypeVar("Command", bound=Callable[..., Any])
Settings = TypeVar("Settings")
LoadModel = Callable[[], "CareModel"]
_STEMMED = [*FUNCTION_WORDS]
Chosen = tuple[str | None, str | None, tuple[str, ...]]
"""Device, engine and URLs of servers."""


@dataclass(frozen=True, slots=True)
class Target:
    """The Qdrant that a command works on: the embedded database of a folder, or a server."""

    path: Path | None
    url: str | None
    api_key: str | None = None
    grpc_port: int | None = None
    """Port for requests about points, over gRPC; None uses HTTP."""

    def open(
        self, *, create: bool = False, timeout_seconds: int | None = None, patience_seconds: float | None = None
    ) -> "AbstractContextManager[QdrantClient]":
        """Return a context manager that opens it; only a command that writes may `create` the folder."""
        from care_qdrant.errors import InputError
        from care_qdrant.qdrant.connection import REQUEST_TIMEOUT_SECONDS, open_client

        if self.path is not None and not create and not self.path.is_dir():
            raise InputError(
                f"{self.path}: there is no such folder, so no embedded database; make one with care ingest, or name "
                "another with --path, or a server with --url"
            )
        return open_client(
            path=self.path,
            url=self.url,
            api_key=self.api_key,
            grpc=self.grpc_port is not None,
            grpc_port=self.grpc_port,
            timeout_seconds=timeout_seconds or REQUEST_TIMEOUT_SECONDS,
            patience_seconds=START_PATIENCE_SECONDS if patience_seconds is None else patience_seconds,
        )

    def options_of(self, command: str) -> list[str]:
        """Return the options by which another command reaches this database; none if its defaults reach it."""
        url, path = os.environ.get("QDRANT_URL"), None
        if not url:
            url, path = default_of(command, "url"), default_of(command, "path")
        reached = (None, str(url)) if url and not path else (str(path or "qdrant"), None)
        if reached == (None if self.path is None else str(self.path), self.url):
            return []
        return ["--url" if self.url else "--path", shlex.quote(str(self))]

    def __str__(self) -> str:
        return redact(self.url) if self.url else str(self.path)


def typed_model() -> str | None:
    """Return the model of the command line; None if the environment or a file gives it, which any command reads."""
    context = click.get_current_context()
    is_typed = context.get_parameter_source("model") is click.core.ParameterSource.COMMANDLINE
    return str(context.params["model"]) if is_typed else None


def add_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the decorator that adds several options, in the order in which the help lists them."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def settings_of(kind: type[Settings], options: Mapping[str, Any], **others: Any) -> Settings:
    """Return the settings of a command: the options that are named like its fields, and others."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: value for name, value in options.items() if name in names} | others)


class FiniteRange(click.FloatRange):
    """A range of floats without NaN, which passes every comparison, and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def setting(variable: str, default: Any, kind: click.ParamType[Any]) -> Any:
    """Return the value of an environment variable, checked as an option would be."""
    try:
        return kind.convert(os.environ.get(variable, default), None, None)
    except click.BadParameter as error:
        raise click.BadParameter(error.message, param_hint=variable) from error


PATIENCE = {"CARE_PATIENCE": "Seconds to wait for a server that stops answering. [default: 600]"}
"""The variable that `retries` reads, for the help of a command."""
BATCHES = {"CARE_BATCH_TOKENS": "Padded tokens of one batch of the document encoder. [default: 16384]"}
"""The variable that `batch_tokens` reads."""


def retries() -> "RetryPolicy":
    """Return how long to wait for a server that does not answer."""
    from care_qdrant.qdrant.retry import RetryPolicy

    return RetryPolicy(setting("CARE_PATIENCE", PATIENCE_SECONDS, FiniteRange(0)))


def batch_tokens() -> int:
    """Return the padded tokens of one batch of a document encoder."""
    return int(setting("CARE_BATCH_TOKENS", 16_384, click.IntRange(1)))


path_option = click.option(
    "--path",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the embedded database.  [default: qdrant]",
)
url_option = click.option(
    "--url",
    cls=Option,
    envvar="QDRANT_URL",
    show_envvar=True,
    help="URL of a Qdrant server, or of the load balancer of a cluster, instead of a folder. Its API key is read from "
    "QDRANT_API_KEY.",
    environment={
        "QDRANT_API_KEY": "API key of the server of --url.",
        "QDRANT_GRPC_PORT": "gRPC port of the server; requests about points then use gRPC. [default: HTTP]",
    },
)


def server_key(url: str) -> str | None:
    """Return the API key of the server; None if there is none, or if it may not be sent there.

    It has no option: other users of a machine see a command line.
    """
    return environment_key("QDRANT_API_KEY", [url], "url")


def grpc_port() -> int | None:
    """Return the gRPC port of the server, where all calls on points go; None is HTTP."""
    port = setting("QDRANT_GRPC_PORT", 0, click.IntRange(0, 65_535))
    return int(port) or None


def target_of(path: Path | None, url: str | None, default: Path) -> Target:
    """Return the server of a URL, or the embedded database of a folder; the one that was given more directly."""
    if path is not None and url is not None:
        path, url = _choose(path, url)
    if url is not None:
        return Target(None, url, server_key(url), grpc_port())
    if path is None or came_from_file("path"):
        warn_of_foreign_folder(path or default)
    return Target(path or default, None)


def _choose(path: Path, url: str) -> tuple[Path | None, str | None]:
    """Choose between a path and a URL that were both given."""
    if _rank("path") == _rank("url"):
        raise click.UsageError("--path and --url name two different databases; give one")
    return (path, None) if _rank("path") < _rank("url") else (None, url)


def _rank(option: str) -> int:
    """Return how directly an option was given: the command line is 0, the environment 1, a file 2."""
    order = [click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT]
    source = click.get_current_context().get_parameter_source(option)
    return order.index(source) if source in order else len(order)


def target_options(command: Command) -> Command:
    """Add ``--path --url``; the command takes one argument ``target: Target``."""

    @wraps(command)
    def with_target(*args: Any, path: Path | None, url: str | None, **options: Any) -> Any:
        target = target_of(path, url, Path("qdrant"))
        typed = typed_model()

        def complete(words: str, model: bool) -> str:
            options = ["--model", shlex.quote(typed)] if model and typed is not None else []
            return " ".join([words, *options, *target.options_of(words.split()[1])])

        token = COMPLETE.set(complete)
        try:
            return command(*args, target=target, **options)
        finally:
            COMPLETE.reset(token)

    return cast(Command, add_options(path_option, url_option)(with_target))


def model_options(*, documents: bool = False) -> Callable[[Command], Command]:
    """Add ``--model`` and, for a command that encodes documents, `engine_options`.

    The command takes one argument ``load_model``, a function.
    """

    def add(command: Command) -> Command:
        @wraps(command)
        def with_model(
            *args: Any, model: str, device: str | None = None, engine: "Engine | None" = None, **options: Any
        ) -> Any:
            def load() -> "CareModel":
                from care_qdrant.encoders.engine import LOCAL
                from care_qdrant.model.care_model import CareModel

                return CareModel.load(model, device=device, precision=precision(), engine=engine or LOCAL)

            return command(*args, load_model=load, **options)

        return cast(Command, model_option()(engine_options(with_model) if documents else with_model))

    return add


def model_option(
    help_: str = "CARE folder, hub name, built-in, or any sentence-transformers model.", *, several: bool = False
) -> Callable[[Any], Any]:
    """Return ``--model``; the value of ``several`` is a tuple under the name ``models``."""
    return click.option(
        "--model",
        "models" if several else "model",
        cls=Option,
        multiple=several,
        default=["built-in"] if several else "built-in",
        show_default=True,
        envvar="CARE_MODEL",
        show_envvar=True,
        help=help_,
        environment={"CARE_PRECISION": "Precision of ONNX query encoders: auto, int8 or fp32. [default: auto]"},
    )


_DEVICE = r"(cpu|cuda|mps|xpu|hpu|npu|mlu)(:\d+)?"
_DEVICES = re.compile(rf"all|{_DEVICE}(,{_DEVICE})*")


def _endpoint_key(urls: Sequence[str], option: str) -> str | None:
    """Return the API key of embeddings servers; None if there is none, or if it may not be sent there."""
    key = environment_key("CARE_ENDPOINT_KEY", urls, option)
    if key:
        warn_of_plain_http("CARE_ENDPOINT_KEY", urls)
    return key


def _choose_engine(device: str | None, engine: str | None, endpoints: tuple[str, ...]) -> Chosen:
    """Check device, engine and servers against each other; a typed option replaces one from a file."""
    if device is not None and not _DEVICES.fullmatch(device):
        raise click.UsageError(
            f"--device {device}: is not a device; expected cpu, cuda, cuda:0 or mps, several with commas, or all"
        )
    for url in endpoints:
        if "://" not in url:
            raise click.UsageError(f"--endpoint {url}: is not a URL; expected one such as http://localhost:8000/v1")
    for option, value in (("device", device), ("engine", engine)):
        if endpoints and value is not None:
            if _rank("endpoints") == _rank(option):
                raise click.UsageError(f"--endpoint and --{option} {value}: a server has its own; leave one out")
            if _rank("endpoints") < _rank(option):
                return None, None, endpoints
            endpoints = ()
    if engine == "onnx" and device is not None and not set(device.split(",")) <= {"cpu"}:
        raise click.UsageError(
            f"--engine onnx and --device {device}: onnx encodes documents on the CPU; leave --device out, or give "
            "--engine torch"
        )
    return device, engine, endpoints


def engine_options(command: Command) -> Command:
    """Add ``--device --engine --endpoint``; the command takes ``device: str | None`` and ``engine: Engine``."""

    @wraps(command)
    def with_engine(
        *args: Any, device: str | None, engine: str | None, endpoints: tuple[str, ...], **options: Any
    ) -> Any:
        from care_qdrant.encoders.engine import Engine

        listed = tuple(url.strip() for given in endpoints for url in given.split(",") if url.strip())
        device, engine, urls = _choose_engine(device, engine, listed)
        reference = os.environ.get("CARE_REFERENCE_VECTORS")
        made = Engine(
            cast(Any, "server" if urls else engine),
            dtype=setting("CARE_DTYPE", "auto", click.Choice(["auto", "float32", "bfloat16"])),
            endpoints=urls,
            served_model=os.environ.get("CARE_ENDPOINT_MODEL"),
            sent=setting("CARE_ENDPOINT_INPUT", "tokens", click.Choice(["tokens", "text", "text-without-prompt"])),
            request_tokens=setting("CARE_ENDPOINT_TOKENS", 16_384, click.IntRange(1)),
            reference=Path(reference) if reference else None,
            api_key=_endpoint_key(urls, "endpoints"),
            patience_seconds=setting("CARE_PATIENCE", PATIENCE_SECONDS, FiniteRange(0)),
        )
        return command(*args, engine=made, device=device, **options)

    device_option = click.option(
        "--device",
        cls=Option,
        metavar="cpu|cuda|cuda:0|mps|…",
        help="Device that encodes documents: several with commas use a process each, and all means every GPU.  "
        "[default: a GPU, else the CPU]",
        environment={"CARE_DTYPE": "Precision of document weights: auto, float32 or bfloat16. [default: auto]"},
    )
    engine_option = click.option(
        "--engine",
        type=click.Choice(["torch", "onnx"]),
        help="Library that encodes documents.  [default: onnx where the model has that file and no --device is given]",
    )
    endpoint_option = click.option(
        "--endpoint",
        "endpoints",
        cls=Option,
        multiple=True,
        metavar="URL",
        help="Embeddings server that encodes documents by OpenAI's protocol, such as http://localhost:8000/v1. Its API "
        "key is read from CARE_ENDPOINT_KEY. Several URLs, repeated or with commas, share the work.",
        environment={
            "CARE_ENDPOINT_KEY": "API key of the servers of --endpoint.",
            "CARE_ENDPOINT_MODEL": "Name of the model on the servers. [default: the name in its card]",
            "CARE_ENDPOINT_INPUT": "What a server gets: tokens, text, or text-without-prompt. [default: tokens]",
            "CARE_ENDPOINT_TOKENS": "Most tokens of a request. [default: 16384]",
            **PATIENCE,
            "CARE_REFERENCE_VECTORS": "File that `care model reference-vectors` wrote. [default: the model's card]",
        },
    )
    return cast(Command, add_options(device_option, engine_option, endpoint_option)(with_engine))


def fallback_option(command: Command) -> Command:
    """Add ``--fallback``; the command takes ``open_fallback``, a function, or None without the option."""

    @wraps(command)
    def with_fallback(*args: Any, fallback: str | None, **options: Any) -> Any:
        share = setting("CARE_FALLBACK_SHARE", 0.2, FiniteRange(0, 1))
        if fallback is not None:
            from care_qdrant.encoders.remote.old_model import require_old_model

            require_old_model(fallback)  # the first unsure query may come hours later
        is_service = fallback is not None and "://" in fallback
        with_key = is_service and _endpoint_key([str(fallback)], "fallback") is not None

        def open_fallback() -> "Fallback":
            from care_qdrant.encoders.remote.old_model import open_old_model
            from care_qdrant.search.fallback import Fallback

            old = open_old_model(str(fallback), with_key=with_key)
            return Fallback(old.encode_query, old.encode_document, share)

        return command(*args, open_fallback=None if fallback is None else open_fallback, **options)

    option = click.option(
        "--fallback",
        cls=Option,
        metavar="FOLDER|URL",
        help="Model that made the vectors, for the queries that a learned encoder is least sure of: a "
        "sentence-transformers folder, or a service with OpenAI's protocol, such as https://api.openai.com/v1.",
        environment={
            "CARE_ENDPOINT_KEY": "API key of the service of --fallback.",
            "CARE_ENDPOINT_MODEL": "Model of that service.",
            "CARE_FALLBACK_SHARE": "Share of the queries that go to --fallback, from 0 to 1. [default: 0.2]",
        },
    )
    return cast(Command, option(with_fallback))


def precision() -> "Precision":
    """Return the precision of ONNX query encoders; auto takes int8 where it passed its accuracy check at export."""
    chosen: Precision = setting("CARE_PRECISION", "auto", click.Choice(["auto", "int8", "fp32"]))
    return chosen


quantization_option = click.option(
    "--quantization",
    type=click.Choice([*QUANTIZATION, "none"]),
    default="none",
    show_default=True,
    callback=lambda _context, _parameter, value: None if value == "none" else value,
    help=f"Compressed copy of the vectors, searched first: {sizes_in_words()} of their size.",
)


any_language_option = click.option(
    "--any-language", is_flag=True, help="Encode also texts of a language that the model does not read."
)


bm25_language_option = click.option(
    "--bm25-language",
    type=click.Choice(LANGUAGES),
    metavar="LANGUAGE",
    help=f"Language of new BM25 terms: {', '.join(_STEMMED[:-1])} or {_STEMMED[-1]}, whose "
    "words are stemmed and whose function words are left out; chinese, also for mixed texts; words for any other.  "
    "[default: that of the first texts]",
)


def deletion_option(help_: str) -> Callable[[Any], Any]:
    """Return ``--max-delete-fraction``."""
    return click.option("--max-delete-fraction", type=FiniteRange(0, 1), default=0.2, show_default=True, help=help_)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, not text.")
