"""A limit on the memory of another process and on the pages of its files that stay cached (cgroup v1 or v2, Linux)."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click

ENTER = 'echo $$ > "$0"/cgroup.procs && exec "$@"'


@contextmanager
def memory_group(mib: int) -> Iterator[Sequence[str]]:
    """Make a group below that of this process, and yield what goes in front of a command that is to run in it."""
    own = own_group(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mounts").read_text())
    if own is None:
        raise click.ClickException("--memory-mib needs a memory cgroup, and this system has none mounted")
    group = own / f"care-perf-{os.getpid()}"
    try:
        group.mkdir()
        try:
            limit = next(file for name in ("memory.max", "memory.limit_in_bytes") if (file := group / name).exists())
            limit.write_text(str(mib * 2**20))
            yield ["sh", "-c", ENTER, str(group)]
        finally:
            _remove(group)
    except (PermissionError, StopIteration, FileNotFoundError) as error:
        raise click.ClickException(
            f"--memory-mib: this process may not limit memory below {own} ({error!r}); run it as root of a machine or "
            "container that owns its cgroups"
        ) from error


def own_group(groups: str, mounts: str) -> Path | None:
    """Return the folder of the memory group of a process."""
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in groups.splitlines())}
    for line in mounts.splitlines():
        _, folder, kind, options, *_ = line.split()
        if kind == "cgroup" and "memory" in options.split(","):
            path = next((path for names, path in paths.items() if "memory" in names.split(",")), None)
            return None if path is None else Path(folder) / path.lstrip("/")
    for line in mounts.splitlines():
        _, folder, kind, *_ = line.split()
        if kind == "cgroup2" and "" in paths:
            return Path(folder) / paths[""].lstrip("/")
    return None


def _remove(group: Path) -> None:
    """Remove a group; the kernel may need a moment after its last process has ended."""
    for _ in range(50):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
    group.rmdir()
