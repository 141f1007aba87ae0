"""``python -m tests.reliability``: many trials of one kind, written as JSON with the machine they ran on."""

import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

import click
from qdrant_client import QdrantClient

from benchmarks.perf.measured import output_option, save_measured, scratch_option
from tests.reliability.network import Network, may_build
from tests.reliability.processes import BINARY, NodeFault, QdrantCluster, QdrantServer, standin_server
from tests.reliability.replicas import await_settled, compare_replicas
from tests.reliability.trials import Fault, Trial, Victim

TRIALS_PER_SERVER = 5
trials_option = click.option(
    "--trials", type=click.IntRange(1), default=50, show_default=True, help="Runs to kill, for each case."
)
seed_option = click.option("--seed", default=0, show_default=True, help="Seed of the random moments.")
points_option = click.option(
    "--points", type=click.IntRange(8), default=300, show_default=True, help="Points of each collection."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def reliability() -> None:
    """Disturb runs at random moments, and check that one more run makes everything right.

    \b
    Example:
      python -m tests.reliability kill-ingest --trials 100 --output benchmarks/results/ingestion-kill.json
    """


@reliability.command()
@trials_option
@click.option("--documents", type=click.IntRange(1), default=1_000, show_default=True, help="Size of the corpus.")
@click.option("--dim", type=click.IntRange(1), default=64, show_default=True, help="Length of the vectors.")
@seed_option
@scratch_option
@output_option
def kill_ingest(trials: int, documents: int, dim: int, seed: int, scratch: Path | None, output: Path) -> None:
    """Kill ingestions, embedded and over HTTP.

    \b
    Example:
      python -m tests.reliability kill-ingest --output benchmarks/results/ingestion-kill.json
    """
    from tests.reliability.ingestion import ingest_trials, make_source
    from tests.reliability.ready_model import write_corpus

    with tempfile.TemporaryDirectory(dir=scratch) as name, standin_server() as url:
        folder = Path(name)
        source = make_source(write_corpus(folder / "corpus.jsonl", documents), dim)
        found = _shown(ingest_trials(source, trials, folder, None, seed))
        found += _shown(ingest_trials(source, trials, folder, url, seed + 1))
    _save(output, found, documents=documents, points=len(source.expected), seed=seed)


@reliability.command()
@trials_option
@click.option("--documents", type=click.IntRange(1), default=96, show_default=True, help="Size of the corpus.")
@click.option(
    "--engine",
    type=click.Choice(["array", "ray", "s3", "cluster"]),
    default="array",
    show_default=True,
    help="What runs it; s3 kills nothing, and lets the object storage misbehave; cluster loads, too.",
)
@seed_option
@output_option
def kill_bulk(trials: int, documents: int, engine: str, seed: int, output: Path) -> None:
    """Kill the encoders of a bulk job: four jobs of an array, two of them with the same share; or of a Ray cluster.

    With s3, an S3 server throttles, resets connections, halves uploads and answers, and lets credentials expire. With
    cluster, encoders, loaders and nodes of a real cluster of three are killed (QDRANT_BINARY names the program).

    \b
    Example:
      python -m tests.reliability kill-bulk --engine ray --trials 12 --output benchmarks/results/bulk-kill-ray.json
    """
    from tests.reliability.bulk import array_trials, cluster_trials, ray_trials
    from tests.reliability.object_storage import storage_trials

    runs = {"array": array_trials, "ray": ray_trials, "s3": storage_trials}
    with tempfile.TemporaryDirectory() as name:
        if engine == "cluster":
            found = _shown(cluster_trials(Path(name), documents, trials, seed, _binary()))
        else:
            found = _shown(runs[engine](Path(name), documents, trials, seed))
    _save(output, found, documents=documents, seed=seed)


@reliability.command()
@trials_option
@points_option
@seed_option
@output_option
def kill_attach(trials: int, points: int, seed: int, output: Path) -> None:
    """Kill attach and detach, embedded and over HTTP.

    \b
    Example:
      python -m tests.reliability kill-attach --output benchmarks/results/deployment-kill-attach.json
    """
    from tests.reliability.attachment import attach_trials, detach_trials

    with tempfile.TemporaryDirectory() as name, standin_server() as url:
        found = [
            trial
            for number, (run, address) in enumerate(
                [(attach_trials, None), (attach_trials, url), (detach_trials, None), (detach_trials, url)]
            )
            for trial in _shown(run(points, trials, Path(name), address, seed + number))
        ]
    _save(output, found, points=points, seed=seed)


@reliability.command()
@trials_option
@points_option
@seed_option
@output_option
def kill_publish(trials: int, points: int, seed: int, output: Path) -> None:
    """Kill promote, and publish on a server and in a folder.

    \b
    Example:
      python -m tests.reliability kill-publish --points 600 --output benchmarks/results/deployment-kill-promote.json
    """
    from tests.reliability.publication import CASES, publication_trials

    with tempfile.TemporaryDirectory() as name, standin_server() as url:
        found = [
            trial
            for number, case in enumerate(CASES)
            for trial in _shown(publication_trials(case, points, trials, Path(name), url, seed + number))
        ]
    _save(output, found, points=points, seed=seed)


@reliability.command()
@trials_option
@points_option
@seed_option
@output_option
def kill_server(trials: int, points: int, seed: int, output: Path) -> None:
    """Kill clients, a real server, and both: ingest, attach, detach, promote and publish.

    QDRANT_BINARY names the server program. Ingestion writes over gRPC, the others over HTTP. A client whose server was
    killed and comes back within 3 seconds has to finish by itself.

    \b
    Example:
      QDRANT_BINARY=qdrant python -m tests.reliability kill-server --output benchmarks/results/kill-server.json
    """
    binary, found = _binary(), list[Trial]()
    victims: tuple[Victim, ...] = ("client", "server", "both")
    with tempfile.TemporaryDirectory() as name:
        for number, victim in enumerate(victims * math.ceil(trials / TRIALS_PER_SERVER)):
            # The start of a server grows with its collections, so the next trials get a new one.
            (place := Path(name) / f"server-{number}").mkdir()
            with QdrantServer(binary, place) as server:
                fault = Fault(victim, None if victim == "client" else server)
                run = _server_trials(
                    server.url, min(trials, TRIALS_PER_SERVER), points, place, seed + 100 * number, fault
                )
                found += _shown(replace(trial, scenario=f"{trial.scenario}: {victim} killed") for trial in run)
            if number % len(victims) == len(victims) - 1:
                _save(output, found, points=points, seed=seed)
            shutil.rmtree(place)


@reliability.command()
@trials_option
@points_option
@seed_option
@output_option
def kill_switch(trials: int, points: int, seed: int, output: Path) -> None:
    """Kill a switch of the model, a reader and a real server in turn, while other clients write and search.

    QDRANT_BINARY names the server program. The switch is rolled back and made again, run once more after the kill,
    rolled back and made again, and the vector before is retired.

    \b
    Example:
      QDRANT_BINARY=qdrant python -m tests.reliability kill-switch --trials 20 --points 20000 \
        --output benchmarks/results/switch-kill-server.json
    """
    from tests.reliability.switching import switch_trials

    with tempfile.TemporaryDirectory() as name, QdrantServer(_binary(), Path(name)) as server:
        found = _shown(switch_trials(points, trials, Path(name), server, seed))
    _save(output, found, points=points, seed=seed)


@reliability.command()
@trials_option
@points_option
@seed_option
@click.option(
    "--fault",
    "faults",
    type=click.Choice(["killed", "frozen", "cut", "moved"]),
    multiple=True,
    default=["killed", "frozen"],
    show_default=True,
    help="What happens to a node; give it once for each.",
)
@click.option(
    "--write-consistency",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="Number of the two replicas that have to take a write.",
)
@output_option
def kill_node(
    trials: int, points: int, seed: int, faults: tuple[NodeFault, ...], write_consistency: int, output: Path
) -> None:
    """Kill, freeze or cut off one node of a real cluster of three, in turn, below the same work as kill-server.

    QDRANT_BINARY names the server program. Each shard is there twice, and the client knows the URL of a load
    balancer in front of the nodes: it has to finish by itself. A node stays away for up to 3 seconds. To be
    cut off the network (--fault cut), nodes run in network namespaces, for which this needs root. With --fault moved,
    no node goes away: every shard is moved or copied to another node. At the end, all replicas have to be equal.
    Attaches run once more beside another writer.

    \b
    Example:
      QDRANT_BINARY=qdrant python -m tests.reliability kill-node --trials 10 --output benchmarks/results/kill-node.json
    """
    from tests.reliability.concurrent_writers import concurrent_writer_trials

    binary, found, transfers = _binary(), list[Trial](), 0
    if "cut" in faults and not may_build():
        raise click.UsageError("--fault cut: this process may not make network namespaces (root, and ip of iproute2)")
    with tempfile.TemporaryDirectory() as name:
        for number, how in enumerate(faults * math.ceil(trials / TRIALS_PER_SERVER)):
            (place := Path(name) / f"cluster-{number}").mkdir()
            with (
                Network(3) if how == "cut" else nullcontext() as network,
                QdrantCluster(
                    binary, place, fault=how, network=network, write_consistency=write_consistency
                ) as cluster,
            ):
                fault, moments = Fault("server", cluster), seed + 100 * number
                some = min(trials, TRIALS_PER_SERVER)
                run = chain(
                    _server_trials(cluster.url, some, points, place, moments, fault),
                    concurrent_writer_trials(points, some, place, cluster.url, moments, fault),
                )
                found += _shown(replace(trial, scenario=f"{trial.scenario}: {_fate(how)}") for trial in run)
                found += _shown([_compared(cluster, how)])
                transfers += cluster.transfers
            _save(
                output, found, points=points, seed=seed, write_consistency=write_consistency, shard_transfers=transfers
            )
            shutil.rmtree(place)


@reliability.command()
@trials_option
@points_option
@seed_option
@click.option("--real-server", is_flag=True, help="On the server program that QDRANT_BINARY names.")
@click.option("--watch", is_flag=True, help="Kill a watch (care attach --watch), which then has to follow the writers.")
@click.option(
    "--victim",
    "victims",
    type=click.Choice(["client", "server", "both"]),
    multiple=True,
    default=["client"],
    show_default=True,
    help="What is killed with --watch; give it once for each. Only a real server can be.",
)
@output_option
def concurrent_writers(
    trials: int,
    points: int,
    seed: int,
    real_server: bool,
    watch: bool,
    victims: tuple[Victim, ...],
    output: Path,
) -> None:
    """Kill attach while other clients add, edit, replace and delete points.

    \b
    Example:
      python -m tests.reliability concurrent-writers --output benchmarks/results/deployment-concurrent-writers.json
      QDRANT_BINARY=qdrant python -m tests.reliability concurrent-writers --real-server --watch --victim both \
        --output benchmarks/results/watch-kill-server.json
    """
    from tests.reliability.concurrent_writers import concurrent_writer_trials
    from tests.reliability.following import watch_trials

    if set(victims) != {"client"} and not (watch and real_server):
        raise click.UsageError("--victim server and both: give --watch and --real-server, too")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        server = stack.enter_context(QdrantServer(_binary(), Path(name))) if real_server else None
        url = stack.enter_context(standin_server()) if server is None else server.url
        found = []
        if watch:
            for number, victim in enumerate(victims):
                fault = Fault(victim, None if victim == "client" else server)
                found += _shown(watch_trials(points, trials, Path(name), url, seed + number, fault))
        else:
            found = _shown(concurrent_writer_trials(points, trials, Path(name), url, seed))
    _save(output, found, points=points, seed=seed)


@reliability.command()
@click.option("--documents", type=click.IntRange(1), default=5_000, show_default=True, help="Size of the corpus.")
@click.option("--seconds", type=click.FloatRange(min=0), default=20, show_default=True, help="Length of the outage.")
@click.option("--dim", type=click.IntRange(1), default=64, show_default=True, help="Length of the vectors.")
@scratch_option
@output_option
def outage(documents: int, seconds: float, dim: int, scratch: Path | None, output: Path) -> None:
    """Take the server away in the middle of an ingestion, and count the points in the end.

    \b
    Example:
      python -m tests.reliability outage --output benchmarks/results/ingestion-outage.json
    """
    from tests.reliability.ingestion import make_source, outage_trial
    from tests.reliability.ready_model import write_corpus

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        source = make_source(write_corpus(Path(folder) / "outage.jsonl", documents), dim)
        found = _shown([outage_trial(source, documents, seconds)])
    _save(output, found, documents=documents, gone_seconds=seconds)


@reliability.command()
@click.option("--queries", type=click.IntRange(10), default=100_000, show_default=True, help="Number of queries.")
@seed_option
@output_option
def soak(queries: int, seed: int, output: Path) -> None:
    """Send mixed concurrent queries to one embedding, many of them cancelled or invalid, and check each answer.

    \b
    Example:
      python -m tests.reliability soak --output benchmarks/results/llama-soak.json
    """
    from benchmarks.perf.random_pair import write_random_pair
    from tests.reliability.soak import CLIENTS, WIDTH, soak_trial

    with tempfile.TemporaryDirectory() as folder:
        model = write_random_pair(Path(folder) / "pair", 1, WIDTH)
        found = _shown([soak_trial(model, queries, seed)])
    _save(output, found, queries=queries, clients=CLIENTS, seed=seed)


@reliability.command()
@click.option("--requests", type=click.IntRange(10), default=100_000, show_default=True, help="Number of requests.")
@seed_option
@click.option("--real-server", is_flag=True, help="On the server program that QDRANT_BINARY names.")
@output_option
def tenants(requests: int, seed: int, real_server: bool, output: Path) -> None:
    """Ask a service as one of several tenants, and compare each answer with that of a service without the others.

    \b
    Example:
      python -m tests.reliability tenants --output benchmarks/results/serve-tenants.json
    """
    from tests.reliability.tenants import TENANCIES, tenant_trial

    def trials() -> Iterator[Trial]:
        for number in range(len(TENANCIES)):
            with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
                places = iter("ab")

                def open_client() -> QdrantClient:
                    if not real_server:
                        return QdrantClient(":memory:")
                    (place := Path(name) / next(places)).mkdir()  # noqa: B023  # called at once
                    return QdrantClient(url=stack.enter_context(QdrantServer(_binary(), place)).url)

                (folder := Path(name) / "services").mkdir()
                first = seed * len(TENANCIES) + number
                yield tenant_trial(requests // len(TENANCIES), first, folder, open_client)

    _save(output, _shown(trials()), requests=requests, seed=seed)


def _shown(trials: Iterable[Trial]) -> list[Trial]:
    """Print each trial to stderr as soon as it is done."""
    found = []
    for trial in trials:
        click.echo(trial, err=True)
        found.append(trial)
    return found


def _binary() -> str:
    if BINARY is None:
        raise click.UsageError("QDRANT_BINARY names no qdrant server program")
    return BINARY


def _server_trials(url: str, trials: int, points: int, scratch: Path, seed: int, fault: Fault) -> Iterator[Trial]:
    """Run everything that writes to a server, or to the nodes of a cluster, with one fault."""
    from tests.reliability.attachment import attach_trials, detach_trials
    from tests.reliability.ingestion import ingest_trials, make_source
    from tests.reliability.publication import publication_trials
    from tests.reliability.ready_model import write_corpus

    source = make_source(write_corpus(scratch / "corpus.jsonl", points), 64)
    arguments = (trials, scratch, url, seed, fault)
    yield from ingest_trials(source, *arguments)
    yield from attach_trials(points, *arguments)
    yield from detach_trials(points, *arguments)
    yield from publication_trials("promote", points, *arguments)
    yield from publication_trials("publish on a server", points, *arguments)


def _fate(how: NodeFault) -> str:
    return "shards moved" if how == "moved" else f"node {how}"


def _compared(cluster: QdrantCluster, how: NodeFault) -> Trial:
    """Wait until a cluster is at rest, and compare its replicas."""
    await_settled(cluster.urls)
    points, unequal = compare_replicas(cluster.urls)
    return Trial(f"replicas compared: {_fate(how)}", 0, False, {"points": points}, {"unequal_points": unequal})


def _save(output: Path, trials: list[Trial], **settings: float) -> None:
    """Write the trials, and fail if one of them violates anything."""
    good = sum(trial.is_good for trial in trials)
    disturbed: dict[str, int] = {}
    for trial in trials:
        disturbed[trial.scenario] = disturbed.get(trial.scenario, 0) + trial.was_disturbed
    summary = {**settings, "disturbed": disturbed, "trials": len(trials), "good": good}
    save_measured(output, {**summary, "results": [asdict(trial) for trial in trials]})
    if good < len(trials):
        raise click.ClickException(f"{len(trials) - good} of {len(trials)} trials went wrong: {output}")


if __name__ == "__main__":
    reliability()
