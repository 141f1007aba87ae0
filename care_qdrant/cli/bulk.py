"""``care bulk``: an ingestion as units of work for many machines."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from care_qdrant.cli.ingest import ShardType, row_options, storage_options
from care_qdrant.console.groups import CONTEXT, Program
from care_qdrant.console.options import (
    LoadModel,
    Target,
    batch_tokens,
    bm25_option,
    engine_options,
    model_options,
    price,
    retries,
    settings_of,
    target_options,
)
from care_qdrant.console.reports import show_report

if TYPE_CHECKING:
    from care_qdrant.bulk.forecast import Forecast, ForecastSettings
    from care_qdrant.bulk.work import Manifest, Work
    from care_qdrant.encoders.engine import Engine
    from care_qdrant.model.pair import CareModel
    from care_qdrant.qdrant.collection import Collection

FAILED_UNITS_EXIT_CODE = 8

_work = click.argument("work")


@click.group(name="bulk", cls=Program, context_settings=CONTEXT)
def command() -> None:
    """Ingest with many machines: plan units of work, encode them anywhere, load the parts.

    WORK is a folder that all machines see, or a URL as s3://bucket/job. Whatever is stopped or killed goes on where it
    was when the same command is run again; the collection is the one that care ingest makes of the corpus.

    \b
    Example:
      care bulk plan corpus/ s3://bucket/job --model ./pair
      care bulk encode s3://bucket/job --shard 3/16
      care bulk load s3://bucket/job --collection articles --url http://localhost:6333
      care bulk verify s3://bucket/job --collection articles --url http://localhost:6333
    """


def _open(url: str) -> "Work":
    from care_qdrant.errors import needs_extra

    with needs_extra("bulk", "care bulk"):
        import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: F401  # said before the work begins

        from care_qdrant.bulk.work import Work
    return Work(url)


@command.command()
@click.argument("corpus", nargs=-1)
@_work
@model_options()
@row_options
@click.option("--vector-name", help="Named vector to write.  [default: name of the model]")
@bm25_option("Also write a sparse vector, for hybrid search.")
@click.option("--float16", is_flag=True, help="Store the vectors of the parts in half precision.")
@click.option(
    "--unit-rows", type=click.IntRange(1), default=8_192, show_default=True, help="Rows, or points, of a unit."
)
@click.option("--collection", help="Collection whose points get the vector, in the place of CORPUS.")
@target_options
@click.option("--dry-run", is_flag=True, help="Write nothing; report tokens, hours, bytes, memory and nodes.")
@click.option("--documents", type=click.IntRange(1), help="With --dry-run: as if there were so many like these.")
@click.option(
    "--tokens-per-second",
    type=click.FloatRange(0, min_open=True),
    help="With --dry-run: speed of a worker.  [default: measured on this machine]",
)
def plan(
    corpus: tuple[str, ...],
    work: str,
    load_model: LoadModel,
    id_field: str,
    text_field: str,
    title_field: str,
    skip_beginning: str | None,
    vector_name: str | None,
    sparse: bool,
    float16: bool,
    collection: str | None,
    target: Target,
    dry_run: bool,
    **options: Any,
) -> None:
    """Cut CORPUS, or the points of a collection, into units, and write the list of them to WORK.

    CORPUS is what care ingest takes, or URLs that fsspec opens. Every row is read once. Planning again over a corpus
    that has grown adds units and changes none; rows that were changed are refused. With --collection the texts of the
    points that lack the model's vector are copied to WORK, and care bulk load adds the vector to them as care attach
    does.

    \b
    Example:
      care bulk plan corpus/ /mnt/job --sparse bm25
      care bulk plan corpus/ /mnt/job --dry-run --documents 100000000
      care bulk plan /mnt/job --collection articles --url http://localhost:6333
      care bulk plan 's3://bucket/texts/*.jsonl' s3://bucket/job --model ./pair --float16
    """
    if bool(corpus) == (collection is not None):
        raise click.UsageError("give CORPUS and WORK; or WORK alone, and --collection")
    if collection is not None and sparse:
        raise click.UsageError("--sparse is for a corpus: care attach --sparse bm25 adds it to a collection")
    opened = _open(work)
    from care_qdrant.bulk.forecast import ForecastSettings
    from care_qdrant.bulk.plan import PlanReport
    from care_qdrant.bulk.plan import plan as make_plan
    from care_qdrant.bulk.points import plan_points
    from care_qdrant.bulk.work import Manifest
    from care_qdrant.corpus.rows import Fields
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
        vector_name=vector_name or model.name,
        fields=Fields(id_field, text_field, title_field, skip_beginning=skip_beginning),
        datatype="float16" if float16 else "float32",
    )
    counter = model.document_tokenizer
    with ExitStack() as stack:
        place = None
        if collection is not None:
            client = stack.enter_context(target.open())
            place = Collection(client, collection, retries()).resolve()
        if dry_run:
            settings = settings_of(ForecastSettings, options, price_per_hour=price())
            show_report(_forecast(corpus, place, text_field, draft, model, settings))
            return
        show = stack.enter_context(points_bar("rows", "read"))
        on_progress: Callable[[int], None] = lambda done: show(done, 0)  # noqa: E731  # two callers
        if place is None:
            manifest = make_plan(corpus, opened, draft, counter, sparse=sparse, on_progress=on_progress)
        else:
            field = _given("text_field", text_field)
            manifest = plan_points(place, opened, draft, counter, text_field=field, on_progress=on_progress)
    show_report(PlanReport.of(manifest, opened))


def _forecast(
    corpus: tuple[str, ...],
    collection: "Collection | None",
    text_field: str,
    draft: "Manifest",
    model: "CareModel",
    settings: "ForecastSettings",
) -> "Forecast":
    from dataclasses import replace

    from care_qdrant.bulk.forecast import SAMPLE_DOCUMENTS, forecast
    from care_qdrant.bulk.plan import corpus_documents
    from care_qdrant.bulk.points import sampled_texts
    from care_qdrant.index.reservoir import Reservoir
    from care_qdrant.types import Document

    if collection is None:
        drawn = Reservoir[Document](SAMPLE_DOCUMENTS, seed=0)
        drawn.draw(corpus_documents(corpus, draft))
        count, sample = drawn.seen, drawn.drawn
    else:
        count, sample = sampled_texts(collection, draft, _given("text_field", text_field))
        draft = replace(draft, collection=collection.name, overflow="truncate")
    return forecast(count, sample, draft, model.document_tokenizer, lambda: model.document_encoder, settings)


def _given(option: str, value: str) -> str | None:
    """Return the value of an option that was given, None for its default."""
    source = click.get_current_context().get_parameter_source(option)
    return None if source is click.core.ParameterSource.DEFAULT else value


@command.command()
@_work
@click.option(
    "--shard", type=ShardType(), default="1/1", show_default=True, help="Encode each n-th unit, from the i-th."
)
@click.option(
    "--workers", type=click.IntRange(1), help="Encoders at once.  [default: 1; of Ray, one a GPU or two cores]"
)
@click.option(
    "--runner",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="What runs them: processes here, or a Ray cluster (RAY_ADDRESS names it).",
)
@click.option("--model", help="Folder of the pair on this machine.  [default: as it was planned]")
@engine_options
def encode(
    work: str,
    shard: tuple[int, int],
    workers: int | None,
    runner: str,
    model: str | None,
    device: str | None,
    engine: "Engine",
) -> None:
    """Encode the units of WORK that have no part yet.

    Several devices are dealt out to the workers.

    Each unit becomes a Parquet file under WORK/parts, rows that cannot be encoded a file under WORK/rejects. A unit
    whose worker dies is given to another one; units that failed are named at the end, and the exit code is 8.

    \b
    Example:
      care bulk encode /mnt/job --workers 4
      care bulk encode s3://bucket/job --shard "$((SLURM_ARRAY_TASK_ID))/16"
      RAY_ADDRESS=auto care bulk encode s3://bucket/job --runner ray
    """
    opened = _open(work)
    from care_qdrant.bulk.workers import WorkerSettings, encode_units
    from care_qdrant.progress import points_bar

    manifest = opened.manifest()
    settings = WorkerSettings(opened.url, model or manifest.model, device, batch_tokens(), engine)
    with points_bar("tokens", "encoded") as show:
        report = encode_units(opened, manifest, settings, shard=shard, runner=runner, workers=workers, on_progress=show)
    show_report(report)
    if report.failed:
        sys.exit(FAILED_UNITS_EXIT_CODE)


@command.command()
@_work
@click.option("--collection", required=True, help="Collection to write to.")
@click.option("--shard", type=ShardType(), default="1/1", show_default=True, help="Load each n-th part, from the i-th.")
@target_options
@storage_options
def load(
    work: str,
    collection: str,
    shard: tuple[int, int],
    target: Target,
    shard_key: str | None,
    indexes: tuple[str, ...],
    **options: Any,
) -> None:
    """Load the parts of WORK into a collection; needs no model and no GPU.

    What the collection holds already is not written again. With several loaders, the search graph is built when the
    last one is through; if one dies, run it again.

    \b
    Example:
      care bulk load /mnt/job --collection articles --url http://localhost:6333 --shards 3 --replicas 2
      care bulk load s3://bucket/job --collection articles --url http://a:6333,http://b:6333 --shard 2/4
    """
    opened = _open(work)
    from care_qdrant.bulk.load import load as load_parts
    from care_qdrant.bulk.load import load_points
    from care_qdrant.index.attach import AttachSettings
    from care_qdrant.progress import points_bar, progress_bar
    from care_qdrant.qdrant.create import Storage, parse_indexes

    policy = retries()
    if opened.manifest().collection is not None:
        if options["shards"] or options["replicas"] or shard_key or indexes:
            raise click.UsageError("--shards, --replicas, --shard-key, --index: this job adds a vector to a collection")
        adding = settings_of(AttachSettings, options)
        with target.open() as client, points_bar(collection) as show_points:
            attached = load_points(
                opened, client, collection, part=shard, settings=adding, retries=policy, on_progress=show_points
            )
        show_report(attached)
        if attached.covered + attached.without_text < attached.points:
            click.echo("some points lack the vector: load the other parts, or plan again for new texts", err=True)
        return
    with target.open(create=True) as client, progress_bar(collection) as show:
        report = load_parts(
            opened,
            client,
            collection,
            part=shard,
            storage=settings_of(Storage, options),
            shard_key=shard_key,
            indexes=parse_indexes(indexes),
            retries=policy,
            grpc=target.may_grpc,
            on_progress=show,
        )
    show_report(report)


@command.command()
@_work
@click.option("--collection", required=True, help="Collection to compare.")
@target_options
def verify(work: str, collection: str, target: Target) -> None:
    """Compare every part of WORK with a collection, and write nothing.

    Every point and the hash of its text, a sample of the vectors, and how many of the nearest points the search graph
    finds. Anything wrong gives exit code 5.

    \b
    Example:
      care bulk verify /mnt/job --collection articles --url http://localhost:6333
    """
    opened = _open(work)
    from care_qdrant.bulk.load import verify as compare
    from care_qdrant.errors import NotVerified
    from care_qdrant.progress import points_bar

    with target.open() as client, points_bar("units", "compared") as show:
        report = compare(opened, client, collection, retries=retries(), on_progress=show)
    show_report(report)
    if report.problems:
        raise NotVerified(f"collection {report.collection!r}: " + "; ".join(report.problems))
