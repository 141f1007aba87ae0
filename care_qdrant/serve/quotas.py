"""How much each key has used: one allowance for all workers of a service, in a file that they lock."""

import fcntl
import math
import os
import struct
import tempfile
import time
from pathlib import Path
from typing import IO

from care_qdrant.serve.keys import Key
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.settings import DIRECTORY_VARIABLE


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
            f"the quota of this API key, {most} texts in {seconds} s, is used up; ask again in {wait} s",
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


def _open(name: str) -> IO[bytes]:
    """Open a file of the folder that the workers of a service share; outside of one, a file of this process."""
    if DIRECTORY_VARIABLE not in os.environ:
        return tempfile.TemporaryFile(buffering=0)
    path = Path(os.environ[DIRECTORY_VARIABLE], name)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
