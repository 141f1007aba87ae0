"""Options that several commands share."""

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

    from care_qdrant.model.pair import CareModel

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Target:
    """Which Qdrant a command works on."""

    path: Path | None
    url: str | None
    api_key: str | None
    grpc: bool
    """Send all that is about points over gRPC."""
    grpc_port: int | None = None
    may_grpc: bool = True
    """Let ingestion choose gRPC where that port answers."""

    def open(self, *, create: bool = False) -> "AbstractContextManager[QdrantClient]":
        """Return a context manager that opens it and closes it.

        Args:
            create: Make the folder of an embedded database that is not there; a command that reads must not.

        Raises:
            InputError: There is no such folder.
        """
        from care_qdrant.errors import InputError
        from care_qdrant.qdrant.connection import open_client

        if self.path is not None and not create and not self.path.is_dir():
            raise InputError(
                f"{self.path}: there is no such folder, so no embedded database; make one with care ingest, or name "
                "another with --path, or a server with --url"
            )
        return open_client(path=self.path, url=self.url, api_key=self.api_key, grpc=self.grpc, grpc_port=self.grpc_port)

    def __str__(self) -> str:
        return redact(self.url) if self.url else str(self.path)


def add_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the decorator that adds several options, in the order in which the help lists them."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


grpc_option = click.option(
    "--grpc/--no-grpc",
    default=None,
    help="Send all calls on points over gRPC, or none.  [default: ingestion writes over gRPC where that port answers]",
)
grpc_port_option = click.option(
    "--grpc-port",
    type=click.IntRange(1, 65_535),
    help="gRPC port of the server; implies --grpc.  [default: the port of the URL plus one]",
)
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


def target_options(command: Command) -> Command:
    """Add ``--path --url --api-key --grpc --grpc-port``; the command takes one argument ``target: Target``."""

    @wraps(command)
    def with_target(
        *args: Any,
        path: Path | None,
        url: str | None,
        api_key: str | None,
        grpc: bool | None,
        grpc_port: int | None,
        **options: Any,
    ) -> Any:
        if path is not None and url is not None:
            path, url = _choose(path, url)
        remember_secret(api_key)
        server = url if path is None else None
        folder = None if server else (path or Path("qdrant"))
        prefers_grpc = grpc if grpc is not None else grpc_port is not None
        target = Target(folder, server, api_key, prefers_grpc, grpc_port, may_grpc=grpc is not False)
        return command(*args, target=target, **options)

    decorated: Command = add_options(
        click.option(
            "--path",
            type=click.Path(path_type=Path, file_okay=False),
            help="Folder of the embedded database. Open none from a stranger: its files are unpickled, and can run "
            "code.  [default: qdrant]",
        ),
        click.option(
            "--url",
            envvar="QDRANT_URL",
            show_envvar=True,
            help="URL of a Qdrant server, instead of a folder; or URLs of a cluster's nodes, with commas between them: "
            "another one is used when one does not answer.",
        ),
        click.option("--api-key", envvar="QDRANT_API_KEY", show_envvar=True, help="API key of the server."),
        grpc_option,
        grpc_port_option,
    )(with_target)
    return decorated


def model_options(command: Command) -> Command:
    """Add ``--model --device --precision``; the command takes one argument ``load_model``, a function."""

    @wraps(command)
    def with_model(*args: Any, model: str, device: str | None, precision: str, **options: Any) -> Any:
        def load() -> "CareModel":
            from care_qdrant.model.pair import CareModel

            return CareModel.load(model, device=device, precision=precision)  # type: ignore[arg-type]  # click.Choice

        return command(*args, load_model=load, **options)

    decorated: Command = add_options(
        click.option(
            "--model",
            default="built-in",
            show_default=True,
            envvar="CARE_MODEL",
            show_envvar=True,
            help="CARE folder, hub name, built-in, or any sentence-transformers model.",
        ),
        click.option("--device", help="Device of torch models: cpu, cuda, mps.  [default: the fastest there is]"),
        click.option(
            "--precision",
            type=click.Choice(["auto", "int8", "fp32"]),
            default="auto",
            show_default=True,
            help="Precision of the ONNX query encoder; auto takes int8 where it passed its accuracy check at export.",
        ),
    )(with_model)
    return decorated


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def _choose(path: Path, url: str) -> tuple[Path | None, str | None]:
    """Keep one of two databases: the command line comes before the environment, and that before a file.

    Raises:
        click.UsageError: Both stand at the same place.
    """
    order = [click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT]
    context = click.get_current_context()
    ranks = {}
    for name in ("path", "url"):
        source = context.get_parameter_source(name)
        ranks[name] = order.index(source) if source in order else len(order)
    if ranks["path"] == ranks["url"]:
        raise click.UsageError("--path and --url name two different databases; give one")
    return (path, None) if ranks["path"] < ranks["url"] else (None, url)
