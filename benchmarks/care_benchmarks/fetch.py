"""Downloads public sets by their real loaders, and says plainly what cannot be had."""

from dataclasses import dataclass
from pathlib import Path

from care_benchmarks.taskfiles import find_tasks
from care_benchmarks.tasks import hub_task, qrels_of, texts_of
from care_qdrant.errors import InputError

CMEDTEB = "CMedTEB"


@dataclass(frozen=True, slots=True)
class Fetched:
    """What became of one set."""

    name: str
    usable: bool
    detail: str
    """Its size, or why it cannot be had."""


def fetch_task(name: str) -> Fetched:
    """Load one of mteb's sets into the local cache, from which runs take it."""
    try:
        task = hub_task(name)
        task.load_data()
    except InputError:
        raise
    except Exception as error:  # The hub, the cache and the loaders fail in many ways; each is an answer here.
        return Fetched(name, False, f"{type(error).__name__}: {first_line(error)}")
    return Fetched(name, True, f"{len(qrels_of(task)):,} queries, {len(texts_of(task)[1]):,} documents")


def fetch_directory(name: str, repository: str, target: Path, revision: str | None = None) -> Fetched:
    """Download a data set repository into a directory, and check that the harness can read it.

    Args:
        name: For the report.
        repository: On the hub, as ``organisation/name``. Where CMedTEB is published could not be confirmed when this
            was written, so its repository is the caller's to give.
        target: Directory to fill.
        revision: Branch, tag or commit.
    """
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(repository, repo_type="dataset", revision=revision, local_dir=target)
    except Exception as error:  # As in `fetch_task`.
        return Fetched(name, False, f"{repository}: {type(error).__name__}: {first_line(error)}")
    try:
        found = find_tasks(target)
    except InputError as error:
        return Fetched(name, False, f"{repository} was downloaded, but {error}")
    kinds = [kind for kind in ("retrieval", "rerank", "sts", "sts_synonym") if getattr(found, kind)]
    return Fetched(name, True, f"{target}: {', '.join(kinds)}")


def first_line(error: Exception) -> str:
    """Give what an error says, in one line."""
    return next(iter(str(error).strip().splitlines()), "no reason given")
