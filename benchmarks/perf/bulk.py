"""What units of work cost against direct ingestion, with ready vectors for an encoder, or with a pair, in turns."""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click

from care_qdrant.bulk.encode import encode_unit
from care_qdrant.bulk.load import load
from care_qdrant.bulk.plan import plan
from care_qdrant.bulk.work import Manifest, Work
from care_qdrant.index.ingest import ingest
from care_qdrant.index.settings import DocumentModel
from care_qdrant.model.pair import CareModel
from care_qdrant.qdrant.connection import open_client
from tests.reliability.processes import BINARY, QdrantServer
from tests.reliability.ready_model import ReadyModel, write_corpus

from .measured import output_option, save_measured, scratch_option, shown


@dataclass(frozen=True, slots=True)
class Turn:
    """CPU and wall seconds of one turn, of this process; the server's are not in it."""

    direct: tuple[float, float]
    plan: tuple[float, float]
    encode: tuple[float, float]
    load: tuple[float, float]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--documents", type=click.IntRange(1), default=20_000, show_default=True, help="Documents, one point each."
)
@click.option("--dim", type=click.IntRange(1), default=1_024, show_default=True, help="Length of the vectors.")
@click.option("--model", help="Pair that encodes, as built-in.  [default: ready vectors, so that the rest shows]")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Turns.")
@scratch_option
@output_option
def bulk(documents: int, dim: int, model: str | None, repeats: int, scratch: Path | None, output: Path) -> None:
    """Compare plan, encode and load with direct ingestion, on a real server (QDRANT_BINARY), or else embedded.

    \b
    Example:
      QDRANT_BINARY=qdrant python -m benchmarks.perf.bulk --output benchmarks/results/bulk-overhead.json
    """
    turns = []
    with tempfile.TemporaryDirectory(dir=scratch) as name, ExitStack() as stack:
        folder = Path(name)
        corpus = write_corpus(folder / "corpus.jsonl", documents, sentences=2)
        pair = ReadyModel(dim) if model is None else CareModel.load(model)
        contract = pair.contract()
        draft = Manifest("pair", pair.name, contract.fingerprint, contract.dim, "Cosine", pair.name)
        url = None if BINARY is None else stack.enter_context(QdrantServer(BINARY, folder)).url
        path = folder / "qdrant" if url is None else None
        with open_client(url=url, path=path) as client:
            for number in range(repeats):
                job = Work(f"{folder}/job-{number}")
                turns.append(
                    shown(
                        Turn(
                            direct=_timed(lambda: ingest(str(corpus), pair, client, "direct")),
                            plan=_timed(
                                lambda: plan([str(corpus)], job, draft, pair.document_tokenizer, sparse=False)  # noqa: B023  # called at once
                            ),
                            encode=_timed(lambda: _encode(job, pair)),  # noqa: B023  # called at once
                            load=_timed(lambda: load(job, client, "bulk")),  # noqa: B023  # called at once
                        )
                    )
                )
                client.delete_collection("direct")
                client.delete_collection("bulk")
    added = [sum(getattr(turn, step)[0] for step in ("plan", "encode", "load")) - turn.direct[0] for turn in turns]
    result = {
        "documents": documents,
        "dim": contract.dim,
        "model": model,
        "server": BINARY is not None,
        "added_cpu_share": round(median(extra / turn.direct[0] for extra, turn in zip(added, turns, strict=True)), 4),
        "added_cpu_ms_per_document": round(1e3 * median(added) / documents, 3),
        "load_to_direct_cpu": round(median(turn.load[0] / turn.direct[0] for turn in turns), 3),
        "load_to_direct_seconds": round(median(turn.load[1] / turn.direct[1] for turn in turns), 3),
    }
    save_measured(output, {**result, "turns": [asdict(turn) for turn in turns]})


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return round(time.process_time() - cpu, 3), round(time.perf_counter() - wall, 3)


def _encode(work: Work, model: DocumentModel) -> None:
    manifest = work.manifest()
    for unit in manifest.units:
        encode_unit(work, manifest, unit, model, 16_384)


if __name__ == "__main__":
    bulk()
