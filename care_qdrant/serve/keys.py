"""The API keys of a service: read from a file, and read again when it changes."""

import base64
import binascii
import hashlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from care_qdrant.errors import InputError

logger = logging.getLogger(__name__)

MIN_CHARACTERS = 16
CHECK_SECONDS = 1.0


class Keys:
    """Accepts any key of a file, one a line; ``#`` starts a comment line.

    A key is added or taken away by editing the file, which a running service reads again within a second. A file that
    cannot be read, or holds no key, leaves the last keys in force: it never opens the service to everybody.
    """

    def __init__(self, file: Path | None) -> None:
        """Read the keys."""
        self._file = file
        self._ids: Mapping[bytes, str] = {}
        self._version: tuple[int, ...] = ()
        self._looked_at = 0.0
        if file is not None:
            self._read(file)

    @property
    def required(self) -> bool:
        """Whether a request needs a key."""
        return self._file is not None

    def identify(self, presented: str | None) -> str | None:
        """Return the short public id of a key, eight hexadecimal digits of its hash; None for an unknown one."""
        self._refresh()
        return self._ids.get(_digest(presented)) if presented else None

    def _refresh(self) -> None:
        if self._file is None or time.monotonic() - self._looked_at < CHECK_SECONDS:
            return
        try:
            if _version_of(self._file) != self._version:
                self._read(self._file)
                logger.info("%s: read again, %d keys are accepted", self._file, len(self._ids))
        except (InputError, OSError) as error:
            logger.error("the last keys stay in force: %s", error)
        self._looked_at = time.monotonic()

    def _read(self, file: Path) -> None:
        try:
            version, text = _version_of(file), file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: cannot be read as a file of API keys ({error})") from error
        keys = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if not keys:
            raise InputError(f"{file}: holds no API key; write one a line")
        if short := sum(len(key) < MIN_CHARACTERS for key in keys):
            raise InputError(f"{file}: {short} keys have fewer than {MIN_CHARACTERS} characters; make longer ones")
        self._version, self._looked_at = version, time.monotonic()
        self._ids = {_digest(key): _digest(key).hex()[:8] for key in keys}


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
