"""The only way to open Qdrant: a server by URL, or the embedded database in a folder."""

import logging
import os
import re
import sqlite3
import ssl
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from ipaddress import ip_address
from itertools import takewhile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from urllib.parse import SplitResult, urlsplit
from weakref import WeakKeyDictionary, WeakSet

from grpc import RpcError, StatusCode  # type: ignore[import-untyped]
from qdrant_client import QdrantClient
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from care_qdrant.errors import FolderLocked, InputError, Rejected, ServerTooOld, Unreachable, remember_secret
from care_qdrant.forking import ForkLock
from care_qdrant.patience import START_PATIENCE_SECONDS

logger = logging.getLogger(__name__)

DEFAULT_HTTP_PORT = 6333
PLAIN_ANSWERS = {"accept-encoding": "identity"}
"""Headers of REST requests that ask a server not to compress its answers.

A compressed answer comes in pieces, and the last one waits for an acknowledgement that the client's system delays by
40 ms. This happens on connections that are kept alive, as all except localhost are: a search took 44 ms there
instead of 0.8 (docs/evidence/experiments.md).
"""
REQUEST_TIMEOUT_SECONDS = 60
_START_PAUSE_SECONDS = 0.2
"""Pause between two attempts to open a server."""


@contextmanager
def open_client(
    *,
    path: str | Path | None = None,
    url: str | None = None,
    api_key: str | None = None,
    grpc: bool = False,
    grpc_port: int | None = None,
    timeout_seconds: int = REQUEST_TIMEOUT_SECONDS,
    patience_seconds: float = START_PATIENCE_SECONDS,
) -> Iterator[QdrantClient]:
    """Open Qdrant and close it at the end of the block.

    A new folder of the embedded database in which an error left no collection is removed.

    Args:
        path: Folder of the embedded database; created if it does not exist. Exactly one of path and url.
        url: URL of a server, or of the load balancer of a cluster, for example ``http://localhost:6333``.
        api_key: API key of the server.
        grpc: Prefer gRPC to REST for points.
        grpc_port: gRPC port of the server; None takes the port of the URL plus one.
        timeout_seconds: Longest time to wait for the answer to a request.
        patience_seconds: Longest time to try a server that does not answer.

    Raises:
        FolderLocked: Another process holds the folder.
        InputError: The URL is not that of a server.
        ServerTooOld: The server is older than version 1.18.
        Unreachable: No server answers at the URL, or at its gRPC port.
        Rejected: The server does not accept the key.
    """
    parts = [] if path is None else [Path(path), *Path(path).parents]
    new = list(takewhile(lambda folder: not os.path.lexists(folder), parts))
    client = (
        _embedded(Path(path))
        if path is not None
        else open_server(
            url,
            api_key,
            grpc=grpc,
            grpc_port=grpc_port,
            timeout_seconds=timeout_seconds,
            patience_seconds=patience_seconds,
        )
    )
    try:
        yield client
    except BaseException:
        _remove_if_unused(new)  # while no other process can open it
        raise
    finally:
        client.close()


def _remove_if_unused(new: Sequence[Path]) -> None:
    """Remove the new folders of an embedded database without a collection; files of other programs stay.

    Args:
        new: The folders that were made for the database, innermost first.
    """
    if not new or any((new[0] / "collection").glob("*")):
        return
    for name in (".lock", "meta.json"):
        with suppress(OSError):  # it was never made
            (new[0] / name).unlink()
    for folder in (new[0] / "collection", *new):
        with suppress(OSError):  # it holds something else, or was never made
            folder.rmdir()


def is_embedded(client: QdrantClient) -> bool:
    """Return whether the client is the in-process database (one process at a time, brute-force search)."""
    return type(getattr(client, "_client", None)).__name__ == "QdrantLocal"


_EMBEDDED_LOCKS: WeakKeyDictionary[Any, ForkLock] = WeakKeyDictionary()
_LOCKS_LOCK = ForkLock()


def client_lock(client: QdrantClient) -> AbstractContextManager[Any]:
    """Return the lock that calls to an embedded database hold; for a server, one that never waits.

    The embedded database is not made for threads. All wrappers of one client share the lock, sync and async.
    """
    if not is_embedded(client):
        return nullcontext()
    with _LOCKS_LOCK:
        return _EMBEDDED_LOCKS.setdefault(client._client, ForkLock())


_FLOOR = (1, 18)
"""Oldest supported version of the server: the first that adds a vector to a collection in use."""
_NEW_ENOUGH: WeakSet[QdrantClient] = WeakSet()
"""Clients whose server has passed the check of its version."""


def require_floor(client: QdrantClient) -> None:
    """Refuse a server that is too old; a client asks its server once, and the embedded database is never too old."""
    if client in _NEW_ENOUGH or is_embedded(client):
        return
    try:
        version = client.info().version
    except UnexpectedResponse as error:
        if error.status_code not in (401, 403, 404):  # a proxy may pass on the paths of collections alone
            raise
    else:
        if as_version(version) < _FLOOR:
            raise ServerTooOld(
                f"this Qdrant server is version {version}, and {'.'.join(map(str, _FLOOR))} is the oldest that is "
                "supported: upgrade it one minor version at a time, each started once on the same storage "
                "(https://qdrant.tech/documentation/upgrades/)"
            )
    _NEW_ENOUGH.add(client)


def as_version(text: str) -> tuple[int, ...]:
    """Return the version of a server as a tuple of numbers for comparison."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def open_server(
    url: str | None,
    api_key: str | None,
    *,
    grpc: bool = False,
    grpc_port: int | None = None,
    timeout_seconds: int = REQUEST_TIMEOUT_SECONDS,
    patience_seconds: float = START_PATIENCE_SECONDS,
    options: Mapping[str, Any] | None = None,
) -> QdrantClient:
    """Return a client of a server, which may still be starting; raises as `open_client`.

    Args:
        url: As in `open_client`; so are the next five arguments.
        api_key: API key of the server.
        grpc: Prefer gRPC to REST for points.
        grpc_port: gRPC port of the server.
        timeout_seconds: Longest time to wait for the answer to a request.
        patience_seconds: Longest time to try a server that does not answer.
        options: Other arguments of `QdrantClient`.
    """
    if not url:
        raise InputError("neither a folder nor a URL of Qdrant was given: pass --path or --url")
    if "," in url:
        raise InputError(f"{url}: names several servers; give one URL (for a cluster, the URL of its load balancer)")
    api_key = api_key.strip() if api_key else api_key  # a file or a secret store may end it with a line feed
    remember_secret(api_key)
    client = _client(url.strip(), api_key, grpc, grpc_port, timeout_seconds, options or {})
    try:
        _wait_until_it_answers(client, url, patience_seconds)
    except BaseException:
        client.close()
        raise
    return client


def _wait_until_it_answers(client: QdrantClient, url: str, patience_seconds: float) -> None:
    """Wait for a server that may still be starting."""
    gives_up_at = time.monotonic() + patience_seconds
    while True:
        try:
            _check_answer(client, url)
        except Unreachable as error:
            # Another program, or a gRPC port at which nothing listens, will not become a Qdrant.
            if isinstance(error.__cause__, ValueError | RpcError) or time.monotonic() >= gives_up_at:
                raise
            time.sleep(_START_PAUSE_SECONDS)
        else:
            return


def _client(
    url: str,
    api_key: str | None,
    grpc: bool,
    grpc_port: int | None,
    timeout_seconds: int,
    options: Mapping[str, Any],
) -> QdrantClient:
    """Return a client of one server; nothing is sent."""
    try:
        # As in qdrant-client: a key goes over https, unless the URL says otherwise.
        address = url if "://" in url else f"{'https' if api_key else 'http'}://{url}"
        parts = _parse(address)
        port = grpc_port or (parts.port or DEFAULT_HTTP_PORT) + 1
        if api_key and parts.scheme == "http" and not is_loopback(parts.hostname):
            logger.warning("%s: the API key is sent without encryption; give an https URL", url)
        # Reading the certificates of all authorities takes longer than a search, and http needs none of them.
        tls: Any = {"verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)} if parts.scheme == "http" else {}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Api key is used with an insecure connection", UserWarning)
            defaults: dict[str, Any] = {
                "check_compatibility": False,
                # Otherwise the client inspects every number of every vector for texts that fastembed would encode.
                "cloud_inference": True,
                "metadata": PLAIN_ANSWERS,
                **tls,
            }
            return QdrantClient(
                url=address,
                api_key=api_key,
                prefer_grpc=grpc,
                grpc_port=port,
                timeout=timeout_seconds,
                **{**defaults, **options},
            )
    except ValueError as error:
        raise InputError(
            f"{url}: is not a URL of a Qdrant server ({error}); expected for example http://localhost:6333"
        ) from error


def _check_answer(client: QdrantClient, url: str) -> None:
    try:
        require_floor(client)  # over HTTP, like every call that is not about points
        client.get_collections()
    except ValueError as error:
        raise Unreachable(
            f"{url}: what answers there is not a Qdrant server, but perhaps a proxy or another program ({error})"
        ) from error
    except UnexpectedResponse as error:
        if error.status_code in (401, 403):
            raise Rejected(f"{url}: the server does not accept this API key ({error.status_code})") from error
        raise Unreachable(f"{url}: answered {error.status_code} {error.reason_phrase}") from error
    except RpcError as error:
        if error.code() in (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED):
            raise Rejected(f"{url}: the server does not accept this API key ({error.details()})") from error
        address = f"{_parse(client.init_options['url']).hostname}:{client.init_options['grpc_port']}"
        raise Unreachable(
            f"{url}: answers over HTTP, but no Qdrant answers over gRPC at {address} ({error.code().name}); "
            "give the gRPC port of the server, or leave out QDRANT_GRPC_PORT"
        ) from error
    except (ResponseHandlingException, OSError) as error:
        is_guessed = "://" not in url and client.init_options["url"].startswith("https://")
        hint = "; it was asked over https, since a key is given: if it has no TLS, write http:// in front" * is_guessed
        raise Unreachable(f"{url}: no Qdrant server answers there ({error}){hint}") from error


def _parse(url: str) -> SplitResult:
    return urlsplit(url if "://" in url else f"http://{url}")


def is_loopback(host: str | None) -> bool:
    """Return whether a host is this machine."""
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def _embedded(path: Path) -> QdrantClient:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: is a file; the embedded database needs a folder")
    _remove_empty_index(path)
    try:
        client = QdrantClient(path=str(path), force_disable_check_same_thread=True)
    except RuntimeError as error:
        if "already accessed" not in str(error):
            raise
        raise FolderLocked(
            f"{path}: another process{_holder(path)} uses this embedded database; "
            "wait for it, or run a Qdrant server and pass --url"
        ) from error
    except ValueError as error:
        raise InputError(
            f"{path / 'meta.json'}: is damaged ({error}); the embedded database cannot be opened"
        ) from error
    except (OSError, EOFError, UnpicklingError, sqlite3.Error) as error:
        raise InputError(
            f"{path}: cannot be opened as an embedded database ({error}); the folder must be writable, and its files "
            "written by Qdrant's client alone"
        ) from error
    return client


def _remove_empty_index(path: Path) -> None:
    """Remove the empty ``meta.json`` that a full disk left in a new folder, which has no collections yet."""
    index = path / "meta.json"
    if index.is_file() and not index.stat().st_size and not any((path / "collection").glob("*")):
        index.unlink()


def _holder(path: Path) -> str:
    """Return the process that holds the folder's lock, for messages; empty on platforms that cannot say."""
    lock, locks = path / ".lock", Path("/proc/locks")
    if not (lock.exists() and locks.exists()):
        return ""
    inode = str(lock.stat().st_ino)
    for line in locks.read_text().splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[5].endswith(f":{inode}") and fields[4] != str(os.getpid()):
            return f" (pid {fields[4]})"
    return ""


def tune_embedded(client: QdrantClient, collection: str) -> bool:
    """Switch the embedded database to write-ahead logging; it commits once per point, which is then 10 times as fast.

    Acknowledged writes survive ``kill -9`` of the process; only a power cut can lose the last commits. The
    connection is a private attribute of qdrant-client: without it, nothing changes and the function returns False.
    """
    if not is_embedded(client):
        return False
    collections = getattr(client._client, "collections", {})
    storage = getattr(getattr(collections.get(collection), "storage", None), "storage", None)
    if not isinstance(storage, sqlite3.Connection):
        return False
    with client_lock(client):  # another run of this process may be writing
        storage.execute("PRAGMA journal_mode=WAL")
        storage.execute("PRAGMA synchronous=NORMAL")
    return True
