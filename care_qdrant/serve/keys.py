"""The API keys of a service, and what each may do: read from a file, and read again when it changes."""

import base64
import hashlib
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from care_qdrant.errors import InputError, counted
from care_qdrant.search.conditions import MandatoryConditions
from care_qdrant.serve.refusal import Refusal

logger = logging.getLogger(__name__)

KeyScope = Literal["inference", "search", "metrics"]

MIN_CHARACTERS = 16
CHECK_SECONDS = 1.0
_SCOPE = re.compile(r"inference|metrics|search(?::\S+)?")


@dataclass(frozen=True, slots=True)
class Key:
    """One API key, without its secret."""

    id: str
    """Eight hexadecimal digits of its hash, as in the access log."""
    scopes: frozenset[str] = frozenset()
    """``inference``, ``search``, ``search:COLLECTION``, ``metrics``; empty for all."""
    mandatory: MandatoryConditions | None = None
    """Conditions that every reading of a collection gets; None for a key that reads all points."""

    def may(self, scope: KeyScope, collection: str | None = None) -> bool:
        """Return whether the key allows a scope; for a search, in this collection."""
        return not self.scopes or scope in self.scopes or f"{scope}:{collection}" in self.scopes

    def require_search(self, collection: str | None) -> None:
        """Refuse a search that the key does not allow; without a collection, only if it allows no search at all."""
        if collection is not None or not any(scope.startswith("search:") for scope in self.scopes):
            self.require("search", collection)

    def require(self, scope: KeyScope, collection: str | None = None) -> None:
        """Refuse a request that the key does not allow."""
        if not self.may(scope, collection):
            what = scope if collection is None else f"{scope}:{collection}"
            raise Refusal(403, "forbidden", f"this API key is for {', '.join(sorted(self.scopes))}, not for {what}")


EVERYTHING = Key("")
"""Stands for the key of a client where none is needed."""


class Keys:
    """Accepts the keys of a file, which holds one on each line, optionally followed by its scopes and conditions.

    Such as ``KEY search:articles where tenant=a``; ``#`` starts a comment line. A running service reads the file again
    within a second of a change. A file that cannot be read, holds no key or ends within a line, as one that is being
    written does, is refused, and a running service keeps the former keys: it never opens to everyone, and a cut line
    gives no key more than the whole one.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._keys: Mapping[bytes, Key] = {}
        self._version: tuple[int, ...] = ()
        self._looked_at = 0.0
        self._problem = ""
        """Reason why the file could not be read at the last check; empty if it could."""
        if file is not None:
            self._read(file)

    @property
    def required(self) -> bool:
        """Whether a request needs a key."""
        return self._file is not None

    def __len__(self) -> int:
        """Return the number of keys that are accepted."""
        return len(self._keys)

    def identify(self, presented: str | None) -> Key | None:
        """Return the scopes of a presented key; None for an unknown one."""
        self._refresh()
        return self._keys.get(_digest(presented)) if presented else None

    def _refresh(self) -> None:
        if self._file is None or time.monotonic() - self._looked_at < CHECK_SECONDS:
            return
        problem = ""
        try:
            if _version_of(self._file) != self._version:
                self._read(self._file)
                logger.info("%s: read again, %s accepted", self._file, counted(len(self._keys), "key", "are"))
        except InputError as error:
            problem = str(error)
        if problem and problem != self._problem:  # once, and not each second
            logger.error("the API keys are not read again, the former ones stay in force: %s", problem)
        self._problem, self._looked_at = problem, time.monotonic()

    def _read(self, file: Path) -> None:
        version = _version_of(file)
        keys: dict[bytes, Key] = {}
        lines_of_keys: dict[bytes, int] = {}
        for number, line in _lines(file):
            digest, key = _parse(file, number, line)
            if digest in keys:
                raise InputError(
                    f"{file}:{number}: repeats the key of line {lines_of_keys[digest]}; write all scopes of a key on "
                    "one line"
                )
            keys[digest], lines_of_keys[digest] = key, number
        if not keys:
            raise InputError(f"{file}: holds no API key; write one on each line")
        self._version, self._looked_at, self._keys = version, time.monotonic(), keys


def _lines(file: Path) -> list[tuple[int, str]]:
    """Return the lines of a file with their numbers, without comments and blank ones."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # editors of Windows begin a file with a byte order mark
    except OSError as error:
        raise _unreadable(file, error) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: byte {error.start} is not UTF-8; save the file of API keys as UTF-8") from error
    if text and not text.endswith("\n"):
        raise InputError(f"{file}: its last line has no line end, so it may be half written; end it with one")
    lines = enumerate(map(str.strip, text.split("\n")), start=1)  # `splitlines` would cut at other blanks as well
    return [(number, line) for number, line in lines if line and not line.startswith("#")]


def _parse(file: Path, number: int, line: str) -> tuple[bytes, Key]:
    """Read a line; no message shows a word of it, since each may be a key."""
    start, *conditions = re.split(r"\s+where(?=\s|$)", line)
    key, *words = start.split()
    if len(key) < MIN_CHARACTERS:
        raise InputError(f"{file}:{number}: the key has fewer than {MIN_CHARACTERS} characters; make a longer one")
    if _SCOPE.fullmatch(key):  # the key would be the line before, without this as its limit
        raise InputError(f"{file}:{number}: begins with a scope; write a key and all of its scopes on one line")
    if not all(map(_SCOPE.fullmatch, words)):
        raise InputError(
            f"{file}:{number}: after the key, expected its scopes (inference, search, search:COLLECTION, metrics), "
            "separated by blanks, or nothing for all of them; then perhaps where CONDITION"
        )
    try:
        mandatory = MandatoryConditions(tuple(conditions)) if conditions else None
    except InputError:
        raise InputError(
            f"{file}:{number}: after each where, expected one condition, such as tenant=a or year>=2020; != is "
            "refused, since points without the key would pass, and so is a number that Qdrant takes for its neighbours"
        ) from None
    if mandatory is not None and "metrics" in words:
        raise InputError(f"{file}:{number}: metrics count the searches of all keys; give a key with where no metrics")
    scopes = words or (["inference", "search"] if mandatory is not None else [])
    digest = _digest(key)
    return digest, Key(digest.hex()[:8], frozenset(scopes), mandatory)


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
        except ValueError:  # not base64, or not UTF-8
            return None
    return headers.get("x-api-key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _unreadable(file: Path, error: OSError) -> InputError:
    return InputError(f"{file}: the file of API keys cannot be read ({error.strerror or error})")


def _version_of(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except OSError as error:
        raise _unreadable(file, error) from error
    return status.st_mtime_ns, status.st_size, status.st_ino
