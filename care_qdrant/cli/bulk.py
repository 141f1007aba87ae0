"""``care bulk``: an ingestion as units for many machines."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from care_qdrant.cli.ingest import STORAGE_GROUP, ShardType, row_options, storage_options
from care_qdrant.console.groups import CONTEXT, GroupedCommand, Program
from care_qdrant.console.options import (
    BATCHES,
    PATIENCE,
    LoadModel,
    Target,
    any_language_option,
    batch_tokens,
    engine_options,
    json_option,
    model_options,
    retries,
    settings_of,
    target_options,
)
from care_qdrant.console.reports import show_report
from care_qdrant.console.text import echo

if TYPE_CHECKING:
    from care_qdrant.bulk.job import Job
    from care_qdrant.encoders.engine import Engine

FAILED_UNITS_EXIT_CODE = 8


_job = click.argument("job")


@click.group(name="bulk", cls=Program, context_settings=CONTEXT)
def command() -> None:
    """Ingest with many machines: plan units, encode them anywhere, load the parts.

    JOB is a folder that all machines see, or a URL such as s3://bucket/job. To continue an interrupted command, run it
    again. The result is the collection that `care ingest` makes from the same corpus.

    \b
    Example:
      care bulk plan corpus/ s3://bucket/job --model ./pair
      care bulk encode s3://bucket/job --shard 3/16
      care bulk load s3://bucket/job --collection articles \\
        --url http://localhost:6333
      care bulk verify s3://bucket/job --collection articles \\
        --url http://localhost:6333
    """


def _open(url: str) -> "Job":
    from care_qdrant.errors import needs_extra

    with needs_extra("bulk", "care bulk"):
        import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: F401  # said before the work begins

        from care_qdrant.bulk.job import Job
    return Job(url)


@command.command(
    cls=GroupedCommand,
    context_settings=CONTEXT,
    environment=PATIENCE,
    groups={
        "Options": ["collection", "model", "path", "url", "sparse", "as_json"],
        "Corpus": ["id_field", "text_field", "title_field", "types", "form", "encoding", "overflow"],
        "Job": ["vector_name", "any_language", "float16", "unit_rows"],
    },
)
@click.argument("corpus", nargs=-1)
@_job
@model_options()
@row_options
@click.option("--vector-name", help="Named vector to write.  [default: name of the model]")
@click.option(
    "--bm25/--no-bm25",
    "sparse",
    default=True,
    help="Add a BM25 vector, for hybrid search.  [default: in a new collection; an existing one keeps what it has]",
)
@any_language_option
@click.option("--float16", is_flag=True, help="Store the vectors of the parts in half precision.")
@click.option(
    "--unit-rows", type=click.IntRange(1), default=8_192, show_default=True, help="Rows, or points, of a unit."
)
@click.option("--collection", help="Collection whose points get the vector, instead of a CORPUS.")
@target_options
@json_option
def plan(
    corpus: tuple[str, ...],
    job: str,
    load_model: LoadModel,
    id_field: str,
    text_field: str,
    title_field: str,
    vector_name: str | None,
    sparse: bool,
    any_language: bool,
    float16: bool,
    collection: str | None,
    target: Target,
    as_json: bool,
    **options: Any,
) -> None:
    """Cut CORPUS, or the points of a collection, into units, and write the list of units to JOB.

    CORPUS is what `care ingest` reads, or URLs that fsspec opens. Each row is read once. Planning again adds units for
    new rows; changed rows are refused. With --collection, the texts of points without the model's vector are copied to
    JOB, and `care bulk load` adds the vector to these points; an interrupted plan continues with the parts of the
    collection that are left.

    \b
    Example:
      care bulk plan corpus/ /mnt/job
      care bulk plan /mnt/job --collection articles --url http://localhost:6333
      care bulk plan 's3://bucket/texts/*.jsonl' s3://bucket/job \\
        --model ./pair --float16
    """
    if bool(corpus) == (collection is not None):
        raise click.UsageError("give CORPUS and JOB; or JOB alone, and --collection")
    if collection is not None:
        if (
            sparse
            and click.get_current_context().get_parameter_source("sparse") is not click.core.ParameterSource.DEFAULT
        ):
            raise click.UsageError("--bm25 is for a corpus: care attach COLLECTION --bm25 adds it to a collection")
        sparse = False
    opened = _open(job)
    from care_qdrant.bulk.job import Manifest
    from care_qdrant.bulk.points import plan_points
    from care_qdrant.bulk.units import PlanReport
    from care_qdrant.bulk.units import plan as plan_units
    from care_qdrant.corpus.rows import Fields
    from care_qdrant.ingestion.settings import name_of_vector
    from care_qdrant.progress import points_bar
    from care_qdrant.qdrant.collection import Collection

    model = load_model()
    contract = model.contract()
    draft = settings_of(
        Manifest,
        options,
        model=str(click.get_current_context().params["model"]),
        model_name=model.name,
        fingerprint=model.fingerprint,
        dim=model.dim,
        distance="Dot" if contract.distance == "Dot" else "Cosine",
        vector_name=name_of_vector(vector_name, model),
        fields=Fields(id_field, text_field, title_field, types=options["types"]),
        datatype="float16" if float16 else "float32",
    )
    counter = model.document_tokenizer
    with ExitStack() as stack:
        place = None
        if collection is not None:
            client = stack.enter_context(target.open())
            place = Collection(client, collection, retries()).resolve()
        show = stack.enter_context(points_bar("rows", "read"))
        on_progress: Callable[[int], None] = lambda done: show(done, 0)  # noqa: E731  # two callers
        if place is None:
            manifest = plan_units(
                corpus,
                opened,
                draft,
                counter,
                form=options["form"],
                sparse=sparse,
                any_language=any_language,
                on_progress=on_progress,
            )
        else:
            manifest = plan_points(
                place,
                opened,
                draft,
                counter,
                text_field=_given("text_field", text_field),
                on_progress=on_progress,
            )
    show_report(PlanReport.of(manifest, opened), as_json=as_json)


def _given(option: str, value: str) -> str | None:
    """Return the value of an option that was given, None for its default."""
    source = click.get_current_context().get_parameter_source(option)
    return None if source is click.core.ParameterSource.DEFAULT else value


@command.command(context_settings=CONTEXT, environment=BATCHES)
@_job
@click.option(
    "--shard", type=ShardType(), default="1/1", show_default=True, help="Encode each n-th unit, from the i-th."
)
@click.option(
    "--workers", type=click.IntRange(1), help="Encoders of Ray at once.  [default: one a GPU, or for two cores]"
)
@click.option(
    "--runner",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="What encodes: this process, or a Ray cluster (RAY_ADDRESS names it; without one, Ray on this machine).",
)
@click.option("--model", help="Folder of the model on this machine.  [default: the model of the plan]")
@engine_options
@json_option
def encode(
    job: str,
    shard: tuple[int, int],
    workers: int | None,
    runner: str,
    model: str | None,
    device: str | None,
    engine: "Engine",
    as_json: bool,
) -> None:
    """Encode the units of JOB that are not encoded yet.

    Each unit becomes a Parquet file under JOB/parts. Rejected rows are listed under JOB/rejects. Run it as often as
    there are machines or GPUs, each with its own --shard, or once with Ray. A run that was killed is continued by the
    same command. If units failed, they are named at the end, and the exit code is 8.

    \b
    Example:
      care bulk encode /mnt/job --runner ray --workers 4
      care bulk encode s3://bucket/job --shard "$((SLURM_ARRAY_TASK_ID))/16"
      RAY_ADDRESS=auto care bulk encode s3://bucket/job --runner ray
    """
    if workers is not None and runner != "ray":
        raise click.UsageError("--workers is for --runner ray; without it, run the command once for each --shard")
    opened = _open(job)
    from care_qdrant.bulk.workers import WorkerSettings, encode_units
    from care_qdrant.progress import points_bar

    manifest = opened.manifest()
    settings = WorkerSettings(opened.url, model or manifest.model, device, batch_tokens(), engine)
    with points_bar("tokens", "encoded") as show:
        report = encode_units(opened, manifest, settings, shard=shard, runner=runner, workers=workers, on_progress=show)
    show_report(report, as_json=as_json)
    if report.rejected:
        echo(f"rejected rows: {report.rejected:,}, listed in {opened.url}/rejects", err=True)
    if report.failed:
        sys.exit(FAILED_UNITS_EXIT_CODE)


@command.command(
    cls=GroupedCommand,
    context_settings=CONTEXT,
    environment=PATIENCE,
    groups={
        "Options": ["collection", "shard", "path", "url", "as_json"],
        **STORAGE_GROUP,
    },
)
@_job
@click.option("--collection", required=True, help="Collection to write to.")
@click.option("--shard", type=ShardType(), default="1/1", show_default=True, help="Load each n-th part, from the i-th.")
@target_options
@storage_options
@json_option
def load(
    job: str,
    collection: str,
    shard: tuple[int, int],
    target: Target,
    shard_key: str | None,
    indexes: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Load the parts of JOB into a collection; it needs no model and no GPU.

    Points that are stored already are not written again. With several loaders, the last one starts the build of the
    search graph. If a loader dies, run it again.

    \b
    Example:
      care bulk load /mnt/job --collection articles \\
        --url http://localhost:6333 --shards 3 --replicas 2
      care bulk load s3://bucket/job --collection articles \\
        --url http://a:6333,http://b:6333 --shard 2/4
    """
    opened = _open(job)
    from care_qdrant.bulk.load import load as load_parts
    from care_qdrant.bulk.load import load_points
    from care_qdrant.progress import points_bar, progress_bar
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.qdrant.create import Storage, parse_indexes
    from care_qdrant.vectors.attach import AttachSettings

    policy = retries()
    if opened.manifest().collection is not None:
        if options["shards"] or options["replicas"] or shard_key or indexes:
            raise click.UsageError("--shards, --replicas, --shard-key, --index: this job adds a vector to a collection")
        adding = settings_of(AttachSettings, options)
        with target.open() as client, points_bar(collection) as show_points:
            place = Collection(client, collection, policy)
            attached = load_points(opened, place, part=shard, settings=adding, on_progress=show_points)
        show_report(attached, as_json=as_json)
        if attached.covered + attached.without_text < attached.points:
            echo("some points lack the vector: load the other parts, or plan again for new texts", err=True)
        return
    with target.open(create=True) as client, progress_bar(collection) as show:
        report = load_parts(
            opened,
            Collection(client, collection, policy, shard_key=shard_key),
            part=shard,
            storage=settings_of(Storage, options),
            indexes=parse_indexes(indexes),
            on_progress=show,
        )
    show_report(report, as_json=as_json)


@command.command(context_settings=CONTEXT, environment=PATIENCE)
@_job
@click.option("--collection", required=True, help="Collection to compare.")
@target_options
@json_option
def verify(job: str, collection: str, target: Target, as_json: bool) -> None:
    """Compare the plan and every part of JOB with a collection, and write nothing.

    It compares the rows of the plan with the parts, each point and the hash of its text, a sample of the vectors, and
    the recall of the search graph. If something is wrong, the exit code is 5.

    \b
    Example:
      care bulk verify /mnt/job --collection articles --url http://localhost:6333
    """
    opened = _open(job)
    from care_qdrant.bulk.load import verify as compare
    from care_qdrant.errors import NotVerified
    from care_qdrant.progress import points_bar
    from care_qdrant.qdrant.collection import Collection

    opened.manifest()  # a folder that is no job is said before a server is asked
    with target.open() as client, points_bar("units", "compared") as show:
        report = compare(opened, Collection(client, collection, retries()), on_progress=show)
    show_report(report, as_json=as_json)
    if report.problems:
        raise NotVerified(f"collection {report.collection!r}: " + "; ".join(report.problems))
