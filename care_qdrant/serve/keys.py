"""The API keys of a service, what each may do and how much: read from a file, and read again when it changes."""

import base64
import binascii
import fcntl
import hashlib
import logging
import math
import os
import re
import struct
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from care_qdrant.errors import InputError, counted
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.settings import DIRECTORY_VARIABLE

logger = logging.getLogger(__name__)

KeyScope = Literal["inference", "search", "metrics"]

MIN_CHARACTERS = 16
CHECK_SECONDS = 1.0
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_WORD = re.compile(rf"(inference|metrics|search(?::\S+)?)|([1-9]\d{{0,11}})/({'|'.join(_SECONDS)})")


def _open(name: str) -> IO[bytes]:
    """Open a file of the folder that the workers of a service share; outside of one, a file of this process."""
    if DIRECTORY_VARIABLE not in os.environ:
        return tempfile.TemporaryFile(buffering=0)
    path = Path(os.environ[DIRECTORY_VARIABLE], name)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)


@dataclass(frozen=True, slots=True)
class Key:
    """One API key, without the key."""

    id: str
    """Eight hexadecimal digits of its hash, as in the access log."""
    scopes: frozenset[str] = frozenset()
    """``inference``, ``search``, ``search:COLLECTION``, ``metrics``; empty for all."""
    quota: tuple[int, int] | None = None
    """Most texts in a number of seconds, (texts, seconds); a search is one text."""

    def may(self, scope: KeyScope, collection: str | None = None) -> bool:
        """Return whether the key is for this; for a search, of this collection."""
        return not self.scopes or scope in self.scopes or f"{scope}:{collection}" in self.scopes

    def require(self, scope: KeyScope, collection: str | None = None) -> None:
        """Refuse what the key is not for."""
        if not self.may(scope, collection):
            what = scope if collection is None else f"{scope}:{collection}"
            raise Refusal(403, "forbidden", f"this API key is for {', '.join(sorted(self.scopes))}, not for {what}")


class Keys:
    """Accepts any key of a file, one a line, after which may stand what it is for and its quota.

    ``KEY search:articles 600/minute``; ``#`` starts a comment line. A running service reads the file again within a
    second of a change. A file that cannot be read, or holds no key, leaves the last keys in force: it never opens the
    service to everybody.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._keys: Mapping[bytes, Key] = {}
        self._version: tuple[int, ...] = ()
        self._looked_at = 0.0
        if file is not None:
            self._read(file)

    @property
    def required(self) -> bool:
        """Whether a request needs a key."""
        return self._file is not None

    def identify(self, presented: str | None) -> Key | None:
        """Return what is known of a key; None for an unknown one."""
        self._refresh()
        return self._keys.get(_digest(presented)) if presented else None

    def _refresh(self) -> None:
        if self._file is None or time.monotonic() - self._looked_at < CHECK_SECONDS:
            return
        try:
            if _version_of(self._file) != self._version:
                self._read(self._file)
                logger.info("%s: read again, %d keys are accepted", self._file, len(self._keys))
        except (InputError, OSError) as error:
            logger.error("the last keys stay in force: %s", error)
        self._looked_at = time.monotonic()

    def _read(self, file: Path) -> None:
        version = _version_of(file) if file.exists() else ()
        lines = read_lines(file, "API keys")
        keys = dict(_parse(file, number, line) for number, line in lines)
        if not keys:
            raise InputError(f"{file}: holds no API key; write one a line")
        self._version, self._looked_at, self._keys = version, time.monotonic(), keys


def read_lines(file: Path, what: str) -> list[tuple[int, str]]:
    """Return the lines of a file with their numbers, without comments and blank ones."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as a file of {what} ({error})") from error
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return [(number, line) for number, line in lines if line and not line.startswith("#")]


def _parse(file: Path, number: int, line: str) -> tuple[bytes, Key]:
    """Read a line; no message shows a word of it, since each may be a key."""
    key, *words = line.split()
    if len(key) < MIN_CHARACTERS:
        raise InputError(f"{file}:{number}: the key has fewer than {MIN_CHARACTERS} characters; make a longer one")
    found = [_WORD.fullmatch(word) for word in words]
    quotas = [(int(match[2]), _SECONDS[match[3]]) for match in found if match and match[2]]
    if None in found or len(quotas) > 1:
        raise InputError(
            f"{file}:{number}: after the key come what it is for (inference, search, search:COLLECTION, metrics; "
            "nothing for all) and at most one quota of texts, as 600/minute"
        )
    scopes = frozenset(match[1] for match in found if match and match[1])
    digest = _digest(key)
    return digest, Key(digest.hex()[:8], scopes, quotas[0] if quotas else None)


def presented_key(headers: Mapping[str, str]) -> str | None:
    """Return the key of a request: ``Authorization`` (Bearer, or Basic with the key as password) or ``X-API-Key``.

    Qdrant passes headers of its own clients on to an inference service where their name ends in ``-api-key``.
    """
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return None
    return headers.get("x-api-key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _version_of(file: Path) -> tuple[int, ...]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


class Quotas:
    """A bucket for each key that refills evenly: GCRA, the leaky bucket of ATM, whose state is one moment in time.

    The moment is when the bucket will be full again, on the clock that all processes of a machine share. A lock of a
    file is let go with the process that holds it, whatever ends that.
    """

    def __init__(self) -> None:
        """Set up; a file is made for the first request of a key."""
        self._files: dict[str, IO[bytes]] = {}

    def take(self, key: Key, texts: int) -> None:
        """Count texts against the quota of a key, or refuse them; what is refused costs nothing."""
        if key.quota is None or not texts:
            return
        most, seconds = key.quota
        wanted = seconds * texts / most
        if texts > most:
            raise Refusal(
                413,
                "batch_too_large",
                f"{texts} texts never fit the quota of this key, {most} in {seconds} s: split it",
            )
        file = self._file(key.id)
        fcntl.lockf(file, fcntl.LOCK_EX)
        try:
            now = time.clock_gettime(time.CLOCK_MONOTONIC)
            [full_again] = struct.unpack("d", os.pread(file, 8, 0) or bytes(8))
            after = max(now, full_again) + wanted
            if after <= now + seconds:
                os.pwrite(file, struct.pack("d", after), 0)
                return
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN)
        wait = math.ceil(after - now - seconds)
        raise Refusal(
            429,
            "quota_exceeded",
            f"the quota of this API key, {counted(most, 'text')} in {seconds} s, is used up; ask again in {wait} s",
            retry_seconds=wait,
        )

    def close(self) -> None:
        """Let the files go."""
        for file in self._files.values():
            file.close()

    def _file(self, name: str) -> int:
        if name not in self._files:
            self._files[name] = _open(f"quota-{name}")
        return self._files[name].fileno()
