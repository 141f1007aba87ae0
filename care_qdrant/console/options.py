"""Options that several commands share."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from care_qdrant.errors import redact, remember_secret

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

    from care_qdrant.encoders.engine import Engine
    from care_qdrant.model.pair import CareModel, Precision

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Target:
    """Which Qdrant a command works on: the embedded database of a folder, or a server."""

    path: Path | None
    url: str | None
    api_key: str | None = None
    grpc_port: int | None = None
    """Send all that is about points over gRPC at this port; 0 keeps to HTTP, None lets ingestion choose."""

    @property
    def grpc(self) -> bool:
        """Whether all calls on points go over gRPC."""
        return bool(self.grpc_port)

    @property
    def may_grpc(self) -> bool:
        """Whether ingestion may choose gRPC where that port answers."""
        return self.grpc_port != 0

    def open(self, *, create: bool = False) -> "AbstractContextManager[QdrantClient]":
        """Return a context manager that opens it; only a command that writes may `create` the folder."""
        from care_qdrant.errors import InputError
        from care_qdrant.qdrant.connection import open_client

        if self.path is not None and not create and not self.path.is_dir():
            raise InputError(
                f"{self.path}: there is no such folder, so no embedded database; make one with care ingest, or name "
                "another with --path, or a server with --url"
            )
        return open_client(
            path=self.path, url=self.url, api_key=self.api_key, grpc=self.grpc, grpc_port=self.grpc_port or None
        )

    def __str__(self) -> str:
        return redact(self.url) if self.url else str(self.path)


def add_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the decorator that adds several options, in the order in which the help lists them."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


patience_option = click.option(
    "--patience",
    type=click.FloatRange(0),
    default=600,
    show_default=True,
    help="Longest time, in seconds, to wait for a server that does not answer.",
)


sparse_option = click.option(
    "--sparse",
    type=click.Choice(["bm25"]),
    help="BM25 of the texts, for hybrid search, instead of the model's vector; needs no model.  [default: off]",
)


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
grpc_port_option = click.option(
    "--grpc-port",
    type=click.IntRange(0, 65_535),
    help="gRPC port of the server: send all calls on points over gRPC; 0: over HTTP.  [default: ingestion writes over "
    "gRPC where the port after the URL's answers]",
)


def server_key() -> str | None:
    """Return the API key of the server. It has no option: other users of a machine see a command line."""
    key = os.environ.get("QDRANT_API_KEY")
    remember_secret(key)
    return key


def target_options(command: Command) -> Command:
    """Add ``--path --url --grpc-port``; the command takes one argument ``target: Target``."""

    @wraps(command)
    def with_target(*args: Any, path: Path | None, url: str | None, grpc_port: int | None, **options: Any) -> Any:
        if path is not None and url is not None:
            path, url = _choose(path, url)
        server = url if path is None else None
        target = Target(None if server else (path or Path("qdrant")), server, server_key(), grpc_port)
        return command(*args, target=target, **options)

    decorated: Command = add_options(path_option, url_option, grpc_port_option)(with_target)
    return decorated


def model_options(*, documents: bool = False, precision: bool = False) -> Callable[[Command], Command]:
    """Add ``--model`` and, for a command that encodes documents, `engine_options`; or ``--precision``.

    The command takes one argument ``load_model``, a function.
    """
    added = [model_option]
    if precision:
        added.append(precision_option)

    def add(command: Command) -> Command:
        @wraps(command)
        def with_model(
            *args: Any,
            model: str,
            device: str | None = None,
            engine: "Engine | None" = None,
            precision: "Precision" = "auto",
            **options: Any,
        ) -> Any:
            def load() -> "CareModel":
                from care_qdrant.encoders.engine import LOCAL
                from care_qdrant.model.pair import CareModel

                return CareModel.load(model, device=device, precision=precision, engine=engine or LOCAL)

            return command(*args, load_model=load, **options)

        decorated: Command = add_options(*added)(engine_options(with_model) if documents else with_model)
        return decorated

    return add


model_option = click.option(
    "--model",
    default="built-in",
    show_default=True,
    envvar="CARE_MODEL",
    show_envvar=True,
    help="CARE folder, hub name, built-in, or any sentence-transformers model.",
)
_engine_options = add_options(
    click.option(
        "--engine",
        "engine_kind",
        type=click.Choice(["torch", "onnx", "server"]),
        help="What encodes documents; server: the servers of --endpoint.  [default: onnx where the model has "
        "that file and no --device is given, else torch]",
    ),
    click.option(
        "--endpoint",
        "endpoints",
        multiple=True,
        metavar="URL[,URL]",
        help="URL of an embeddings server that speaks OpenAI's protocol, as http://localhost:8000/v1 (its API key: "
        "CARE_ENDPOINT_KEY). Several share the work. Repeatable.",
    ),
    click.option("--endpoint-model", metavar="NAME", help="Model name on the servers.  [default: the model's own]"),
    click.option(
        "--endpoint-input",
        type=click.Choice(["tokens", "text", "text-without-prompt"]),
        default="tokens",
        show_default=True,
        help="What servers get: token ids; texts, where they take no ids; texts without the prompt that they add.",
    ),
    click.option(
        "--endpoint-tokens",
        type=click.IntRange(1),
        default=16_384,
        show_default=True,
        help="Most tokens of a request, which has two minutes: fewer for a server on a CPU.",
    ),
    click.option(
        "--reference-vectors",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Vectors that servers must reproduce (care model reference-vectors).  [default: those in the card, else "
        "made here]",
    ),
    click.option(
        "--device",
        "--devices",
        "device",
        help="Device of torch: cpu, cuda, mps; several, as cuda:0,cuda:1 or cpu,cpu, or all GPUs, as all, encode "
        "documents by a process each.  [default: the fastest there is]",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16"]),
        default="auto",
        show_default=True,
        help="Precision of torch weights of documents; auto: float32 on a CPU, else bfloat16.",
    ),
)
ENGINE = [
    "engine_kind",
    "endpoints",
    "endpoint_model",
    "endpoint_input",
    "endpoint_tokens",
    "reference_vectors",
    "device",
    "dtype",
]
"""Names of the parameters that `engine_options` adds, for a group of the help."""


def engine_options(command: Command) -> Command:
    """Add what says how documents are encoded; the command takes ``device: str | None`` and ``engine: Engine``."""

    @wraps(command)
    def with_engine(
        *args: Any,
        engine_kind: Any,
        endpoints: tuple[str, ...],
        endpoint_model: str | None,
        endpoint_input: Any,
        endpoint_tokens: int,
        reference_vectors: Path | None,
        dtype: Any,
        **options: Any,
    ) -> Any:
        from care_qdrant.encoders.engine import Engine

        key = os.environ.get("CARE_ENDPOINT_KEY")
        remember_secret(key)
        urls = tuple(url.strip() for given in endpoints for url in given.split(",") if url.strip())
        engine = Engine(
            engine_kind,
            dtype=dtype,
            endpoints=urls,
            served_model=endpoint_model,
            sent=endpoint_input,
            request_tokens=endpoint_tokens,
            reference=reference_vectors,
            api_key=key,
        )
        return command(*args, engine=engine, **options)

    decorated: Command = _engine_options(with_engine)
    return decorated


precision_option = click.option(
    "--precision",
    type=click.Choice(["auto", "int8", "fp32"]),
    default="auto",
    show_default=True,
    help="Precision of ONNX query encoders; auto takes int8 where it passed its accuracy check at export.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def _choose(path: Path, url: str) -> tuple[Path | None, str | None]:
    """Keep one of two databases: the command line comes before the environment, and that before a file."""
    order = [click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT]
    context = click.get_current_context()
    ranks = {}
    for name in ("path", "url"):
        source = context.get_parameter_source(name)
        ranks[name] = order.index(source) if source in order else len(order)
    if ranks["path"] == ranks["url"]:
        raise click.UsageError("--path and --url name two different databases; give one")
    return (path, None) if ranks["path"] < ranks["url"] else (None, url)
