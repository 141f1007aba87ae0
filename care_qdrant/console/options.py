"""Options that several commands share."""

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
from care_qdrant.console.groups import as_typed
from care_qdrant.console.trust import came_from_file, environment_key, warn_of_foreign_folder, warn_of_plain_http
from care_qdrant.errors import COMPLETE, redact

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

    from care_qdrant.encoders.engine import Engine
    from care_qdrant.model.pair import CareModel, Precision
    from care_qdrant.qdrant.retry import RetryPolicy
    from care_qdrant.search.fallback import Fallback

Command = TypeVar("Command", bound=Callable[..., Any])
Settings = TypeVar("Settings")
LoadModel = Callable[[], "CareModel"]


@dataclass(frozen=True, slots=True)
class Target:
    """Which Qdrant a command works on: the embedded database of a folder, or a server."""

    path: Path | None
    url: str | None
    api_key: str | None = None
    grpc_port: int | None = None
    """Send all that is about points over gRPC at this port; 0 keeps to HTTP, None lets ingestion choose."""

    @property
    def may_grpc(self) -> bool:
        """Whether ingestion may choose gRPC where that port answers."""
        return self.grpc_port != 0

    def open(
        self, *, create: bool = False, timeout_seconds: int | None = None, patience_seconds: float | None = None
    ) -> "AbstractContextManager[QdrantClient]":
        """Return a context manager that opens it; only a command that writes may `create` the folder."""
        from care_qdrant.encoders.engine import START_PATIENCE_SECONDS
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
            grpc=bool(self.grpc_port),
            grpc_port=self.grpc_port or None,
            timeout_seconds=timeout_seconds or REQUEST_TIMEOUT_SECONDS,
            patience_seconds=START_PATIENCE_SECONDS if patience_seconds is None else patience_seconds,
        )

    def options_of(self, command: str) -> list[str]:
        """Return the options by which another command reaches this database; none where it does so without any."""
        url, path = os.environ.get("QDRANT_URL"), None
        if not url:
            url, path = default_of(command, "url"), default_of(command, "path")
        found = (None, str(url)) if url and not path else (str(path or "qdrant"), None)
        if found == (None if self.path is None else str(self.path), self.url):
            return []
        return ["--url" if self.url else "--path", shlex.quote(str(self))]

    def __str__(self) -> str:
        return redact(self.url) if self.url else str(self.path)


def typed_model() -> str | None:
    """Return the model of the command line; None where the environment or a file gives it, to any command."""
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
    """Return the settings of a command: those options that have a field of their name, and others."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: value for name, value in options.items() if name in names} | others)


def setting(variable: str, default: Any, kind: click.ParamType[Any]) -> Any:
    """Return what an environment variable says, checked as an option would be."""
    try:
        return kind.convert(os.environ.get(variable, default), None, None)
    except click.BadParameter as error:
        raise click.BadParameter(error.message, param_hint=variable) from error


def retries() -> "RetryPolicy":
    """Return how long to wait for a server that does not answer."""
    from care_qdrant.encoders.engine import PATIENCE_SECONDS
    from care_qdrant.qdrant.retry import RetryPolicy

    return RetryPolicy(setting("CARE_PATIENCE", PATIENCE_SECONDS, click.FloatRange(0)))


def batch_tokens() -> int:
    """Return the padded tokens of one batch of a document encoder."""
    return int(setting("CARE_BATCH_TOKENS", 16_384, click.IntRange(1)))


def price() -> float | None:
    """Return the price of an hour of this machine, for estimates."""
    return float(setting("CARE_PRICE", 0, click.FloatRange(0))) if "CARE_PRICE" in os.environ else None


path_option = click.option(
    "--path",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the embedded database. Open none from a stranger: its files are unpickled, and can run "
    "code.  [default: qdrant]",
)
url_option = click.option(
    "--url",
    envvar="QDRANT_URL",
    show_envvar=True,
    help="URL of a Qdrant server, instead of a folder (its API key: QDRANT_API_KEY); or URLs of a cluster's nodes, "
    "with commas between them: another one is used when one does not answer.",
)


def server_key(url: str) -> str | None:
    """Return the API key of the server, where it may go there.

    It has no option: other users of a machine see a command line.
    """
    urls = [part for each in url.split(",") if (part := each.strip())]
    return environment_key("QDRANT_API_KEY", urls, "url")


def grpc_port() -> int | None:
    """Return the gRPC port of the server: all calls on points go there; 0 keeps to HTTP, None lets ingestion choose."""
    port = setting("QDRANT_GRPC_PORT", -1, click.IntRange(-1, 65_535))
    return None if port < 0 else int(port)


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
    """Keep one of two databases: the command line comes before the environment, and that before a file."""
    order = [click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT]
    context = click.get_current_context()
    sources = (context.get_parameter_source(name) for name in ("path", "url"))
    of_path, of_url = (order.index(source) if source in order else len(order) for source in sources)
    if of_path == of_url:
        raise click.UsageError("--path and --url name two different databases; give one")
    return (path, None) if of_path < of_url else (None, url)


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
                from care_qdrant.model.pair import CareModel

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
        multiple=several,
        default=["built-in"] if several else "built-in",
        show_default=True,
        envvar="CARE_MODEL",
        show_envvar=True,
        help=help_,
    )


engine_option = click.option(
    "--engine",
    "--endpoint",
    "--device",
    "--devices",
    "engine_words",
    multiple=True,
    metavar="ENGINE|DEVICE|URL",
    help="What encodes documents: onnx; torch, or its device: cpu, cuda, mps, or several with a process each, as "
    "cuda:0,cuda:1 or cpu,cpu, or all GPUs, as all; or server, or URLs of servers that speak OpenAI's protocol, as "
    "http://localhost:8000/v1 (API key: CARE_ENDPOINT_KEY). Repeatable: several URLs share the work.  [default: onnx "
    "where the model has that file and no device is given, else torch]",
)
ENGINES = ("torch", "onnx", "server")
_DEVICE = r"(cpu|cuda|mps|xpu|hpu|npu|mlu)(:\d+)?"
_DEVICES = re.compile(rf"all|{_DEVICE}(,{_DEVICE})*")


def _endpoint_key(urls: Sequence[str], option: str) -> str | None:
    """Return the API key of embeddings servers, where it may go there."""
    key = environment_key("CARE_ENDPOINT_KEY", urls, option)
    if key:
        warn_of_plain_http("CARE_ENDPOINT_KEY", urls)
    return key


def _typed_engine(word: str) -> str:
    """Return a word of `engine_option` with the spelling of the option that was typed."""
    context = click.get_current_context()
    [param] = [each for each in context.command.params if each.name == "engine_words"]
    return as_typed(context, param, word)


def engine_options(command: Command) -> Command:
    """Add ``--engine``; the command takes ``device: str | None`` and ``engine: Engine``."""

    @wraps(command)
    def with_engine(*args: Any, engine_words: tuple[str, ...], **options: Any) -> Any:
        from care_qdrant.encoders.engine import PATIENCE_SECONDS, Engine

        urls = tuple(url.strip() for word in engine_words if "://" in word for url in word.split(",") if url.strip())
        kinds = {word for word in engine_words if word in ENGINES}
        devices = {word for word in engine_words if word not in ENGINES and "://" not in word}
        for word in devices:
            if not _DEVICES.fullmatch(word):
                raise click.UsageError(
                    f"{_typed_engine(word)}: is no engine ({', '.join(ENGINES)}), device or URL (http://…)"
                )
        if len(kinds) > 1 or len(devices) > 1:
            several = " and ".join(map(_typed_engine, sorted(kinds if len(kinds) > 1 else devices)))
            raise click.UsageError(f"{several}: give one (of several devices, with commas: cuda:0,cuda:1)")
        reference = os.environ.get("CARE_REFERENCE_VECTORS")
        engine = Engine(
            cast(Any, next(iter(kinds), "server" if urls else None)),
            dtype=setting("CARE_DTYPE", "auto", click.Choice(["auto", "float32", "bfloat16"])),
            endpoints=urls,
            served_model=os.environ.get("CARE_ENDPOINT_MODEL"),
            sent=setting("CARE_ENDPOINT_INPUT", "tokens", click.Choice(["tokens", "text", "text-without-prompt"])),
            request_tokens=setting("CARE_ENDPOINT_TOKENS", 16_384, click.IntRange(1)),
            reference=Path(reference) if reference else None,
            api_key=_endpoint_key(urls, "engine_words"),
            patience_seconds=setting("CARE_PATIENCE", PATIENCE_SECONDS, click.FloatRange(0)),
        )
        return command(*args, engine=engine, device=next(iter(devices), None), **options)

    return cast(Command, engine_option(with_engine))


def fallback_option(command: Command) -> Command:
    """Add ``--fallback``; the command takes ``open_fallback``, a function, or None where there is none."""

    @wraps(command)
    def with_fallback(*args: Any, fallback: str | None, **options: Any) -> Any:
        share = setting("CARE_FALLBACK_SHARE", 0.2, click.FloatRange(0, 1))
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
        metavar="FOLDER|URL",
        help="The model that made the vectors, for the queries that a learned encoder is least sure of: a "
        "sentence-transformers folder, or a service that speaks OpenAI's protocol, as https://api.openai.com/v1 (its "
        "model: CARE_ENDPOINT_MODEL, API key: CARE_ENDPOINT_KEY; share of the queries: CARE_FALLBACK_SHARE, 0.2).",
    )
    return cast(Command, option(with_fallback))


def precision() -> "Precision":
    """Return the precision of ONNX query encoders; auto takes int8 where it passed its accuracy check at export."""
    found: Precision = setting("CARE_PRECISION", "auto", click.Choice(["auto", "int8", "fp32"]))
    return found


def quantization_option(help_: str) -> Callable[[Any], Any]:
    """Return ``--quantization``, whose value is None for none."""
    return click.option(
        "--quantization",
        type=click.Choice(["int8", "turbo", "product", "binary", "none"]),
        default="none",
        show_default=True,
        callback=lambda _context, _parameter, value: None if value == "none" else value,
        help=help_,
    )


def deletion_option(help_: str) -> Callable[[Any], Any]:
    """Return ``--max-delete-fraction``."""
    return click.option(
        "--max-delete-fraction", type=click.FloatRange(0, 1), default=0.2, show_default=True, help=help_
    )


def bm25_option(help_: str) -> Callable[[Any], Any]:
    """Return ``--sparse bm25``, whose value is whether it was given."""
    return click.option(
        "--sparse",
        type=click.Choice(["bm25"]),
        callback=lambda _context, _parameter, value: value is not None,
        help=help_,
    )


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
