"""Download of public sets by their own loaders, with the reason for each set that cannot be had."""

from dataclasses import dataclass
from pathlib import Path

from care_benchmarks.taskfiles import find_tasks
from care_benchmarks.tasks import first_line, hub_task, load_task
from care_qdrant.errors import InputError

CMEDTEB = "CMedTEB"


@dataclass(frozen=True, slots=True)
class Fetched:
    """Outcome of one download."""

    name: str
    usable: bool
    detail: str
    """Size of the set, or the reason of the failure."""


def fetch_task(name: str) -> Fetched:
    """Load one of mteb's sets into the local cache that runs read."""
    task = hub_task(name)
    try:
        loaded = load_task(task)
    except InputError as error:
        cause = error.__cause__ or error
        return Fetched(name, False, f"{type(cause).__name__}: {first_line(cause)}")
    return Fetched(name, True, f"{len(loaded.qrels):,} queries, {len(loaded.documents):,} documents")


def fetch_directory(name: str, repository: str, target: Path, revision: str | None = None) -> Fetched:
    """Download a data set repository into a directory, and check that the harness can read it."""
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(repository, repo_type="dataset", revision=revision, local_dir=target)
    except Exception as error:  # The hub raises many types; each is an outcome here.
        return Fetched(name, False, f"{repository}: {type(error).__name__}: {first_line(error)}")
    try:
        found = find_tasks(target)
    except InputError as error:
        return Fetched(name, False, f"{repository} was downloaded, but {error}")
    kinds = [kind for kind in ("retrieval", "rerank", "sts", "sts_synonym") if getattr(found, kind)]
    return Fetched(name, True, f"{target}: {', '.join(kinds)}")
