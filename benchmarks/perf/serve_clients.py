"""Compare the example clients of other languages with `care search`: texts in, the same documents out."""

import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
from qdrant_client import QdrantClient

from benchmarks.perf.measured import output_option, plain, save_measured, shown
from benchmarks.perf.serve_latency import COLLECTION, SAMPLE, inferring_qdrant, running_service
from care_qdrant import CareModel, Hit, Retriever
from care_qdrant.ingestion.ingest import ingest

TOP_K = 10
"""The clients ask for so many documents."""
ROW = re.compile(r"^(?=-?\d\.\d{9}\t)", re.MULTILINE)
"""Before a row; a text may have several lines."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One client against `care search`, over all queries."""

    client: str
    queries: int
    hits: int
    queries_with_other_documents: int
    """Queries whose list has another document, or the same in another order."""
    texts_that_differ: int
    largest_difference_of_scores: float


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--client",
    "clients",
    type=(str, str),
    multiple=True,
    required=True,
    help="Name and command of a client; COLLECTION VECTOR MODEL QUERY are appended. Repeatable.",
)
@click.option("--binary", envvar="QDRANT_BINARY", required=True, help="Server program, which is started on loopback.")
@output_option
def main(clients: tuple[tuple[str, str], ...], binary: str, output: Path) -> None:
    """Run each client for every query of the sample, against a real server that asks care serve.

    A client prints for each document its score with nine decimals, id, title and text, with tabs between them.

    \b
    Example:
      QDRANT_BINARY=qdrant python -m benchmarks.perf.serve_clients --client go ./care-search \\
        --output benchmarks/results/serve-clients.json
    """
    texts = [json.loads(line)["text"] for line in (SAMPLE / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        service = stack.enter_context(running_service(folder, workers=1))
        server = stack.enter_context(inferring_qdrant(binary, folder, service))
        model = CareModel.load()
        qdrant = QdrantClient(url=server.url, check_compatibility=False)
        ingest(SAMPLE / "corpus.jsonl", model, qdrant, COLLECTION)
        expected = Retriever(qdrant, COLLECTION, model).search(texts, TOP_K)
        where = {"QDRANT_URL": server.url, "QDRANT_GRPC_PORT": str(server.grpc_port)}
        compared = [
            shown(compare(name, shlex.split(command), model.name, texts, expected, where)) for name, command in clients
        ]
    save_measured(output, {"top_k": TOP_K, "clients": plain(compared)})


def compare(
    name: str,
    command: Sequence[str],
    model: str,
    texts: Sequence[str],
    expected: Sequence[Sequence[Hit]],
    where: Mapping[str, str],
) -> Compared:
    """Return how far the answers of one client are from those of `Retriever`."""
    others = hits = other_texts = 0
    difference = 0.0
    for text, wanted in zip(texts, expected, strict=True):
        done = subprocess.run(
            [*command, COLLECTION, model, model, text],
            env=os.environ | where,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            encoding="utf-8",
        )
        found = [row.removesuffix("\n").split("\t", 3) for row in ROW.split(done.stdout) if "\t" in row]
        hits += len(found)
        if [row[1] for row in found] != [hit.document_id for hit in wanted]:
            others += 1
            continue
        other_texts += sum(row[2:] != [hit.title, hit.text] for row, hit in zip(found, wanted, strict=True))
        differences = (abs(float(row[0]) - hit.score) for row, hit in zip(found, wanted, strict=True))
        difference = max(difference, *differences)
    return Compared(name, len(texts), hits, others, other_texts, difference)


if __name__ == "__main__":
    main()
