"""``care serve``: the model as a service."""

import logging
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from care_qdrant.console.groups import CONTEXT, GroupedCommand, Option
from care_qdrant.console.options import (
    Target,
    engine_options,
    fallback_option,
    model_option,
    precision,
    setting,
    settings_of,
    target_options,
)

if TYPE_CHECKING:
    from care_qdrant.encoders.engine import Engine
    from care_qdrant.model.care_model import CareModel
    from care_qdrant.serve.settings import ServeSettings

logger = logging.getLogger(__name__)


@click.command(
    name="serve",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    groups={
        "Options": [
            "models",
            "collections",
            "path",
            "url",
            "host",
            "port",
            "workers",
            "keys",
            "mcp",
        ],
        "Documents": ["documents", "device", "engine", "endpoints"],
        "Operation": ["fallback", "record", "metrics_port"],
    },
)
@model_option(
    "Model to serve: CARE folder, hub name or built-in. Repeatable; the first one is the default.", several=True
)
@click.option("--documents", is_flag=True, help="Serve document encoders as well.")
@click.option(
    "--collection",
    "collections",
    multiple=True,
    help="Collection or alias to search. Repeatable.  [default: all that the models can search]",
)
@click.option(
    "--mcp",
    type=click.Choice(["http", "stdio"]),
    is_flag=False,
    flag_value="http",
    help="Serve the Model Context Protocol as well: at /mcp, or over stdin and stdout instead of HTTP.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 takes a free one."
)
@click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes; each encodes on one core."
)
@click.option(
    "--keys",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of API keys: each line a key and its scopes. Read again when it changes.  [default: no key is needed]",
)
@click.option(
    "--record",
    cls=Option,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the searches of the last 30 days, and for judgements of hits, for which the search page then has "
    "buttons. care learn --queries reads both.  [default: nothing is kept]",
    environment={
        "CARE_RECORD_DAYS": "Days for which --record keeps a search; 0 keeps judgements alone. [default: 30]",
        "CARE_RECORD_REDACTED": "Regular expression: what it matches in a query is kept as *; empty for nothing. "
        "[default: mail addresses, and numbers of six digits or more]",
    },
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Separate port of /metrics, without a key; --port then does not have it.  [default: --port]",
)
@fallback_option
@target_options
@engine_options
def command(
    models: tuple[str, ...],
    collections: tuple[str, ...],
    mcp: str | None,
    host: str,
    workers: int,
    keys: Path | None,
    target: Target,
    device: str | None,
    engine: "Engine",
    **options: Any,
) -> None:
    """Serve encoders and searches over HTTP.

    The search page is at http://HOST:PORT. OpenAI clients use http://HOST:PORT/v1. A Qdrant server with
    QDRANT__INFERENCE__ADDRESS=http://HOST:PORT/inference takes texts instead of vectors. Without --collection, all
    collections that the models can search are served; GET /collections lists the others with the reason. SIGHUP loads
    the models again without downtime. The access log is on stdout.

    \b
    Example:
      care serve
      care serve --collection articles --url http://localhost:6333 \\
        --workers 2 --keys keys.txt --host 0.0.0.0
      care serve --collection articles --mcp=stdio
    """
    from care_qdrant.destinations import require_writable
    from care_qdrant.errors import COMPLETE, InputError, require_packages
    from care_qdrant.serve.record import REDACTED
    from care_qdrant.serve.settings import LOOPBACK, ServeSettings

    COMPLETE.set(None)  # a client does not reach the database with the options of this process

    embedded_by_many = target.path is not None and workers > 1
    if collections and embedded_by_many:
        raise InputError(
            f"{target.path}: only one process can open an embedded database; give --workers 1, or a server with --url"
        )

    loaded: list[CareModel] = []

    def load_models() -> "list[CareModel]":
        from care_qdrant.model.care_model import CareModel

        loaded[:] = [CareModel.load(model, device=device, precision=precision(), engine=engine) for model in models]
        return list(loaded)

    # Shorter than elsewhere: a client waits, and each search has three attempts.
    open_qdrant = partial(target.open, create=True, timeout_seconds=10, patience_seconds=0)
    no_database = embedded_by_many or (not collections and target.path is not None and not target.path.is_dir())
    settings = settings_of(
        ServeSettings,
        options,
        load_models=load_models,
        open_qdrant=None if no_database else open_qdrant,
        collections=collections,
        host=host,
        workers=workers,
        keys_file=keys,
        mcp=mcp is not None,
        record_days=setting("CARE_RECORD_DAYS", 30, click.IntRange(0)),
        redacted=setting("CARE_RECORD_REDACTED", REDACTED, click.types.FuncParamType(_regular_expression)),
    )
    if settings.record is not None:
        require_writable(settings.record)
    if mcp is not None:
        require_packages("mcp", "care serve --mcp", "mcp", "uvicorn", "starlette")
    if mcp != "stdio":
        # A reload that is requested before the models are loaded has nothing to do, and would end the process.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    there = settings.open_qdrant is not None and _look_for(collections, target)
    if mcp == "stdio":
        from care_qdrant.serve.app import serve_stdio

        serve_stdio(settings)
        return
    from care_qdrant.serve.supervisor import serve

    _set_up_access_log()
    if host not in LOOPBACK and keys is None:
        logger.warning("everyone who can reach %s can use this service; give --keys FILE", host)

    def announce(address: str) -> None:
        for line in (f"serving on {address}", *_facts(settings, loaded, target, are_there=there)):
            logger.info("%s", line)

    serve(settings, announce)


def _regular_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a regular expression ({error}).") from error
    return text


def _facts(
    settings: "ServeSettings", models: "Sequence[CareModel]", target: Target, *, are_there: bool
) -> Iterator[str]:
    """Yield lines that say what is served."""
    from care_qdrant.errors import counted
    from care_qdrant.serve.keys import Keys
    from care_qdrant.version import __version__

    yield f"version: care-qdrant {__version__}"
    yield f"models: {', '.join(f'{model.name}@{model.fingerprint[:12]}' for model in models)}"
    yield f"Qdrant: {'none' if settings.open_qdrant is None else target}"
    if settings.open_qdrant is not None:
        later = "" if are_there else " (not served yet)"
        yield f"collections: {', '.join(settings.collections) or 'all that the models can search'}{later}"
    keys = Keys(settings.keys_file)
    in_force = f"{counted(len(keys), 'key')} of {settings.keys_file}" if keys.required else "none needed"
    yield f"API keys: {in_force}"


def _look_for(collections: tuple[str, ...], target: Target) -> bool:
    """Return whether the collections can be served; refuse a database where none of them ever can.

    A warning names what may still come: a server that starts later, a collection of it, a folder that another process
    has open.
    """
    from care_qdrant.errors import FolderLocked, NoCollection, Unreachable
    from care_qdrant.qdrant.collection import Collection

    try:
        with target.open(timeout_seconds=10, patience_seconds=0) as client:
            for name in collections:
                Collection(client, name).resolve()
    except (FolderLocked, NoCollection, Unreachable) as error:
        if isinstance(error, NoCollection) and target.path is not None:
            raise
        logger.warning("not served yet: %s", error)
        return False
    return True


def _set_up_access_log() -> None:
    """Send the access log to stdout, but with --quiet; everything else goes where the program's log goes."""
    access = logging.getLogger("care_qdrant.serve.access")
    access.propagate = False
    access.setLevel(logging.getLogger("care_qdrant").level)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(handler)
