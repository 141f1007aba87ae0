"""Graphs, quantization, storage and payload indexes on a real server: what they take, and what searches find."""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np

from care_qdrant.qdrant.connection import as_version
from care_qdrant.types import Vectors
from tests.reliability.processes import QdrantServer

from .cloud import CloudEncoder
from .exact import nearest
from .index_filters import ARRANGEMENTS, measure_filters
from .index_ways import WAYS, measure_beside, measure_loading, measure_way
from .measured import output_option, save_measured, scratch_option, shown
from .own_server import TOP_K, connected

STAGES = ("ways", "loading", "beside", "filters")
LOADED_POINTS = (30_000, 100_000)
FILTERED_POINTS = 100_000

vectors_file = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--binary", envvar="QDRANT_BINARY", required=True, help="Server program, which is started on loopback.")
@click.option(
    "--vectors",
    type=vectors_file,
    help="Unit vectors of the points, float32 rows in an .npy file, as benchmarks.perf.text_vectors writes them.  "
    "[default: generated ones in clusters]",
)
@click.option("--queries", type=vectors_file, help="The same of the queries; goes with --vectors.")
@click.option("--points", type=click.IntRange(1_000), default=100_000, show_default=True, help="At most; of the ways.")
@click.option("--asked", type=click.IntRange(20), default=500, show_default=True, help="Number of queries, at most.")
@click.option(
    "--stage", "stages", type=click.Choice(STAGES), multiple=True, help="What to measure.  [default: everything]"
)
@click.option("--way", "ways", type=click.Choice(list(WAYS)), multiple=True, help="Ways to measure.  [default: all]")
@click.option(
    "--arrangement",
    "arrangements",
    type=click.Choice(list(ARRANGEMENTS)),
    multiple=True,
    help="Payload indexes of the filters.  [default: all]",
)
@click.option("--on-disk", is_flag=True, help="Of the ways, only those that keep vectors on disk.")
@click.option(
    "--memory-mib",
    type=click.IntRange(50),
    help="Start the server once more on each collection on disk, with so much memory (a cgroup).  [default: not done]",
)
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="Loads of each kind.")
@scratch_option
@output_option
def main(
    binary: str,
    vectors: Path | None,
    queries: Path | None,
    points: int,
    asked: int,
    stages: Sequence[str],
    ways: Sequence[str],
    arrangements: Sequence[str],
    on_disk: bool,
    memory_mib: int | None,
    rounds: int,
    scratch: Path | None,
    output: Path,
) -> None:
    """Measure each way to hold vectors, loading, searches beside a load, and filtered searches.

    Each result is written at once, and what the file has already is not measured again, so that a run that was
    stopped can go on.

    \b
    Example:
      python -m benchmarks.perf.server_index --binary ./qdrant --vectors vectors/documents.npy \\
        --queries vectors/queries.npy --output benchmarks/results/server-index-100000.json
    """
    if (vectors is None) != (queries is None):
        raise click.UsageError("--vectors and --queries go together")
    rows, questions = _generated(max(points, FILTERED_POINTS), asked) if vectors is None else _read(vectors, queries)
    used, questions = rows[:points], questions[:asked]
    result = _result(output)
    about = {"server": _version(binary, scratch)}
    result |= {
        "vectors": "generated in clusters" if vectors is None else "real text",
        "points": len(used),
        "dim": rows.shape[1],
        "queries": len(questions),
    }
    known = as_version(about["server"])
    names = [name for name in ways or WAYS if (WAYS[name].on_disk or not on_disk) and WAYS[name].since <= known]
    if "ways" in (stages or STAGES):
        exact = nearest(used, questions, TOP_K)
        for name in names:
            if name not in result["ways"]:
                measured = measure_way(binary, scratch, WAYS[name], used, questions, exact, memory_mib)
                result["ways"][name] = {**about, "load_average": _load(), **asdict(shown(measured))}
                save_measured(output, result)
    if "loading" in (stages or STAGES):
        done = {(load["points"], load["round"], load["deferred"]) for load in result["loading"]}
        for key in (key for key in product(LOADED_POINTS, range(rounds), (False, True)) if key not in done):
            size, number, deferred = key
            built = shown(measure_loading(binary, scratch, rows[:size], deferred=deferred))
            load = {"points": size, "round": number, "deferred": deferred, "load_average": _load()}
            result["loading"].append({**about, **load, "build": asdict(built)})
            save_measured(output, result)
    if "beside" in (stages or STAGES) and not result["beside"]:
        exact = nearest(used[: len(used) // 2], questions, TOP_K)
        beside = shown(measure_beside(binary, scratch, used, questions, exact))
        result["beside"] = {**about, "load_average": _load(), **asdict(beside)}
        save_measured(output, result)
    if "filters" in (stages or STAGES):
        filtered = rows[:FILTERED_POINTS]
        for name in (name for name in arrangements or ARRANGEMENTS if name not in result["filters"]):
            arranged = measure_filters(binary, scratch, name, filtered, questions)
            result["filters"][name] = {
                **about,
                "load_average": _load(),
                "points": len(filtered),
                **asdict(shown(arranged)),
            }
            save_measured(output, result)


def _result(output: Path) -> dict[str, Any]:
    """Return what was measured already."""
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    found.pop("machine", None)
    return {"ways": {}, "loading": [], "beside": {}, "filters": {}} | found


def _generated(points: int, asked: int) -> tuple[Vectors, Vectors]:
    encoder = CloudEncoder()
    return encoder.draw(points), encoder.draw(asked)


def _read(vectors: Path, queries: Path | None) -> tuple[Vectors, Vectors]:
    rows: Vectors = np.load(vectors, mmap_mode="r")
    return rows, np.load(queries or vectors)


def _version(binary: str, scratch: Path | None) -> str:
    with (
        tempfile.TemporaryDirectory(dir=scratch) as folder,
        QdrantServer(binary, Path(folder)) as server,
        connected(server) as client,
    ):
        return client.info().version


def _load() -> float:
    return round(os.getloadavg()[0], 1)


if __name__ == "__main__":
    main()
