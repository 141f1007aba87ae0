"""Description of the machine and the software that a number was measured with."""

import os
import platform
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_CPU_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve")
_PACKAGES = (
    "care-qdrant",
    "llama-index-core",
    "mteb",
    "numpy",
    "onnxruntime",
    "qdrant-client",
    "sentence-transformers",
    "torch",
    "transformers",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware, versions and commit of a measurement."""

    cpu: str
    cpu_flags: list[str]
    """The flags that decide the speed of an encoder."""
    cpus_usable: int
    memory_gib: float
    threads: str
    """Value of ``OMP_NUM_THREADS``, or "unset"."""
    gpu: str
    system: str
    python: str
    packages: dict[str, str]
    commit: str
    """Git commit of the source tree, followed by "+changes" if it has uncommitted changes; "unknown" outside git."""
    measured_at: str
    """UTC time in ISO 8601."""
    load_average: float | None = None
    """Processes that wanted a CPU in the last minute, this one included; far above 1 the machine was busy. None if the
    system does not report it."""


def describe_machine() -> Machine:
    """Return the machine, the versions and the commit of this process."""
    import torch

    facts = _cpu_facts()
    flags = facts.get("flags", facts.get("Features", "")).split()
    return Machine(
        cpu=facts.get("model name", platform.processor() or platform.machine()),
        cpu_flags=[flag for flag in _CPU_FLAGS if flag in flags],
        cpus_usable=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=_memory_gib(),
        threads=os.environ.get("OMP_NUM_THREADS", "unset"),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        packages=_versions(),
        commit=commit_of(Path(__file__).parent),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        load_average=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    )


def commit_of(folder: Path) -> str:
    """Return the git commit of a folder, marked if tracked files differ from it."""
    head = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    return f"{head}+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else head


def _git(folder: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _cpu_facts() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    pairs = (line.split(":", 1) for line in path.read_text().split("\n\n")[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _memory_gib() -> float:
    path = Path("/proc/meminfo")
    match = re.search(r"MemTotal:\s+(\d+) kB", path.read_text()) if path.exists() else None
    return round(int(match[1]) / 2**20, 1) if match else 0.0


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
