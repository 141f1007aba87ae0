"""The command line. Each command is a thin module with its imports inside its function, so `--help` is instant."""

import click

from care_qdrant.console import run
from care_qdrant.console.groups import CONTEXT, Program
from care_qdrant.console.logs import log_options
from care_qdrant.version import __version__

_SUMMARIES = {
    "Start": {
        "demo": "Open a search page over sample documents",
        "ingest": "Put documents into a collection",
        "search": "Find the documents that answer a question",
    },
    "Existing collections": {
        "status": "Show collections, their vectors and models",
        "switch": "Change the model behind a collection",
        "attach": "Add a vector of a model, or BM25",
        "verify": "Check the vectors of a collection",
        "detach": "Remove a vector that was attached",
        "delete": "Delete a collection",
        "learn": "Train a query encoder from stored vectors",
    },
    "Serve": {"serve": "Serve search, encoders and a page over HTTP"},
    "Move": {
        "publish": "Copy, verify, and switch an alias",
        "promote": "Copy a collection from a folder to a server",
    },
    "Models": {
        "model": "Show, verify, import or export models",
        "train": "Train a model",
        "bench": "Measure accuracy and speed",
        "data": "Make a benchmark from a collection",
    },
    "Large scale": {"bulk": "Ingest with many machines"},
}
_ADDED = ("learn", "train", "bench", "data")
"""Commands of packages above the core, which entry points add."""


@click.group(
    cls=Program,
    modules={
        name: f"care_qdrant.cli.{name}:command"
        for commands in _SUMMARIES.values()
        for name in commands
        if name not in _ADDED
    },
    entry_points_of="care_qdrant.commands",
    summaries=_SUMMARIES,
    context_settings=CONTEXT,
)
@click.version_option(__version__, prog_name="care")
@log_options
def care() -> None:
    """Asymmetric retrieval: an LLM encodes documents into Qdrant, a small BERT answers queries.

    \b
    Example:
      care ingest corpus.jsonl
      care search "糖尿病人能吃西瓜吗"
    """


def main() -> None:
    """Run `care`."""
    run(care)
