"""``care-ingest`` and ``care ingest``: a corpus into Qdrant."""

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from care_qdrant.cli import run
from care_qdrant.cli.groups import CONTEXT, GroupedCommand
from care_qdrant.cli.options import Target, add_options, model_options, patience_option, target_options
from care_qdrant.errors import REJECTED_ROWS_EXIT_CODE

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

    from care_qdrant.ingestion.settings import IngestSettings
    from care_qdrant.model import CareModel


class _ShardType(click.ParamType[tuple[int, int]]):
    """``i/n``, as two numbers."""

    name = "i/n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        number, _, of = str(value).partition("/")
        if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            self.fail(f"{value!r} is no shard; the shards of four machines are 1/4, 2/4, 3/4 and 4/4", param, ctx)
        return int(number), int(of)


_collection_options = add_options(
    click.option("--collection", help="Collection to write to.  [default: name of the file without extensions]"),
    click.option("--vector-name", help="Named vector to write.  [default: name of the model]"),
)
_row_options = add_options(
    click.option("--id-field", default="id", show_default=True, help="Field of a row that holds its id."),
    click.option("--text-field", default="text", show_default=True, help="Field of a row that holds its text."),
    click.option(
        "--title-field",
        default="title",
        show_default=True,
        help="Field of a row that holds its title, which is encoded in front of the text.",
    ),
    click.option(
        "--overflow",
        type=click.Choice(["split", "truncate", "reject"]),
        default="split",
        show_default=True,
        help="What to do with documents that are longer than the encoder reads.",
    ),
)
_run_options = add_options(
    click.option(
        "--dry-run", is_flag=True, help="Write nothing; report what would be written and how long it would take."
    ),
    click.option("--limit", type=click.IntRange(min=1), help="Number of rows to read.  [default: all]"),
    click.option(
        "--shard",
        type=_ShardType(),
        default="1/1",
        show_default=True,
        help="Ingest shard i of n disjoint ones, as in a job array.",
    ),
    click.option(
        "--batch-tokens",
        type=click.IntRange(min=1),
        default=16_384,
        show_default=True,
        help="Padded tokens of one batch of the encoder.",
    ),
    click.option("--sparse", type=click.Choice(["bm25"]), help="Also write a sparse vector, for hybrid search."),
    click.option("--sync", is_flag=True, help="Delete points of documents that are no longer in the corpus."),
    click.option(
        "--max-delete-fraction",
        type=click.FloatRange(0, 1),
        default=0.2,
        show_default=True,
        help="Largest fraction of the stored points that --sync may delete.",
    ),
    click.option("--sync-despite-rejects", is_flag=True, help="Let --sync delete although rows were rejected."),
)
_storage_options = add_options(
    click.option(
        "--quantization",
        type=click.Choice(["int8", "binary", "none"]),
        default="none",
        show_default=True,
        help="Compressed copy of the vectors that is searched first.",
    ),
    click.option("--on-disk", is_flag=True, help="Keep the vectors on disk."),
    click.option(
        "--datatype",
        type=click.Choice(["float32", "float16"]),
        default="float32",
        show_default=True,
        help="Number type of the stored vectors.",
    ),
    click.option("--shards", type=click.IntRange(min=1), help="Number of shards.  [default: left to the server]"),
    click.option("--replicas", type=click.IntRange(min=1), help="Copies of each shard.  [default: left to the server]"),
)


@click.command(
    name="ingest",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    groups={
        "Options": ["collection", "model", "path", "url", "sparse", "sync", "dry_run", "limit"],
        "Corpus": ["id_field", "text_field", "title_field", "overflow", "shard"],
        "Model": ["vector_name", "device", "precision", "batch_tokens"],
        "Server": ["api_key", "grpc", "grpc_port", "patience"],
        "Deletion": ["max_delete_fraction", "sync_despite_rejects"],
        "Storage of a new collection": ["quantization", "on_disk", "datatype", "shards", "replicas"],
    },
)
@click.argument("corpus")
@_collection_options
@target_options
@patience_option
@model_options
@_row_options
@_run_options
@_storage_options
def command(
    corpus: str,
    collection: str | None,
    vector_name: str | None,
    target: Target,
    load_model: "Callable[[], CareModel]",
    **options: Any,
) -> None:
    """Put CORPUS into a named vector of a Qdrant collection.

    CORPUS is a file of JSON lines (.jsonl, .jsonl.gz, .jsonl.zst), a Parquet file, or - for JSON lines on standard
    input. A row has an id, a text and optionally a title and metadata; its other fields join the metadata.

    Documents that are stored already are neither encoded nor written again, so an interrupted run is finished by the
    same command. Rows that cannot be ingested go to CORPUS.rejects.jsonl with line number and reason; then the exit
    code is 8. The report is one line of JSON on stdout.

    \b
    Example:
      care-ingest corpus.jsonl
      care-ingest corpus.jsonl.gz --url http://localhost:6333 --sparse bm25
      care-ingest rows.parquet --text-field body --collection guidelines --dry-run
    """
    from care_qdrant.corpus.files import STDIN, check_corpus, corpus_name
    from care_qdrant.corpus.rows import Fields
    from care_qdrant.ingestion.run import ingest
    from care_qdrant.progress import progress_bar
    from care_qdrant.store.create import Storage
    from care_qdrant.store.retry import RetryPolicy

    if corpus == STDIN and collection is None:
        raise click.UsageError("standard input has no name: give --collection")
    check_corpus(corpus)
    model = load_model()
    quantization = None if options["quantization"] == "none" else options["quantization"]
    with _database(target, options["dry_run"]) as client, progress_bar(corpus) as show:
        report = ingest(
            corpus,
            model,
            client,
            collection or corpus_name(corpus),
            vector_name=vector_name,
            settings=_settings(options),
            storage=Storage(
                quantization, options["on_disk"], options["datatype"], options["shards"], options["replicas"]
            ),
            fields=Fields(options["id_field"], options["text_field"], options["title_field"]),
            retries=RetryPolicy(options["patience"]),
            on_progress=show,
        )
    click.echo(json.dumps(asdict(report), ensure_ascii=False))
    if report.rejected:
        click.echo(f"rejected rows: {report.rejected:,}, listed in {report.rejects_file}", err=True)
        sys.exit(REJECTED_ROWS_EXIT_CODE)


def _database(target: Target, dry_run: bool) -> "AbstractContextManager[QdrantClient]":
    """Open the target; for a dry run that would have to create its folder, an empty database in memory."""
    if dry_run and target.path is not None and not target.path.exists():
        from qdrant_client import QdrantClient

        return closing(QdrantClient(":memory:"))
    return target.open()


def _settings(options: dict[str, Any]) -> "IngestSettings":
    from care_qdrant.ingestion.reading import Shard
    from care_qdrant.ingestion.settings import IngestSettings

    return IngestSettings(
        overflow=options["overflow"],
        sparse=options["sparse"] is not None,
        limit=options["limit"],
        shard=Shard(*options["shard"]),
        sync=options["sync"],
        max_delete_fraction=options["max_delete_fraction"],
        sync_despite_rejects=options["sync_despite_rejects"],
        dry_run=options["dry_run"],
        batch_tokens=options["batch_tokens"],
    )


def main() -> None:
    """Run `care-ingest`."""
    run(command)
