"""``care-ingest`` and ``care ingest``: a corpus into Qdrant."""

import sys
from contextlib import AbstractContextManager, closing
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import override

from care_qdrant.console import run
from care_qdrant.console.groups import CONTEXT, GroupedCommand
from care_qdrant.console.logs import bars_cleared, log_options
from care_qdrant.console.options import (
    BATCHES,
    PATIENCE,
    LoadModel,
    Target,
    add_options,
    any_language_option,
    batch_tokens,
    bm25_language_option,
    deletion_option,
    json_option,
    model_options,
    quantization_option,
    retries,
    settings_of,
    target_options,
)
from care_qdrant.console.reports import search_command, show_json
from care_qdrant.console.text import echo
from care_qdrant.corpus.endings import FORMATS
from care_qdrant.destinations import require_writable
from care_qdrant.errors import REJECTED_ROWS_EXIT_CODE, counted, next_command
from care_qdrant.version import __version__

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

    from care_qdrant.corpus.column_types import ColumnType
    from care_qdrant.ingestion.settings import IngestReport, IngestSettings


class ShardType(click.ParamType[tuple[int, int]]):
    """``i/n``, as two numbers."""

    name = "i/n"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        number, _, of = str(value).partition("/")
        if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            self.fail(f"{value!r} is not a shard; the shards of four machines are 1/4, 2/4, 3/4 and 4/4", param, ctx)
        return int(number), int(of)


class ColumnTypes(click.ParamType[dict[str, "ColumnType"]]):
    """``name=int,date=date``, as a dictionary."""

    name = "name=type,…"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "dict[str, ColumnType]":
        from care_qdrant.corpus.column_types import parse_types

        return value if isinstance(value, dict) else parse_types(str(value))


_collection_options = add_options(
    click.option(
        "--collection",
        help="Collection to write to.  [default: name of the file without .jsonl, .csv, .gz and the like]",
    ),
    click.option("--vector-name", help="Named vector to write.  [default: name of the model]"),
)


row_options = add_options(
    click.option(
        "--id-field",
        default="id",
        show_default=True,
        help="Field of a row that holds its id; :hash makes an id of title and text.",
    ),
    click.option(
        "--text-field",
        default="text",
        show_default=True,
        help="Field of a row that holds its text; or several, separated by commas: the first that is not empty.",
    ),
    click.option(
        "--title-field",
        default="title",
        show_default=True,
        help="Field of a row that holds its title, which is encoded in front of the text.",
    ),
    click.option(
        "--types",
        type=ColumnTypes(),
        default={},
        metavar="NAME=TYPE,…",
        help="Types of columns of CSV and TSV tables: int, float, date or text.  [default: numbers and dates where "
        "every cell of a column is one; text in a pipe]",
    ),
    click.option(
        "--format",
        "form",
        type=click.Choice(FORMATS),
        help="Format of standard input, and of files whose names have no known ending.  [default: JSON lines for "
        "standard input]",
    ),
    click.option(
        "--encoding",
        default="utf-8",
        show_default=True,
        help="Encoding of text files that are not UTF-8, such as gb18030.",
    ),
    click.option(
        "--overflow",
        type=click.Choice(["split", "truncate"]),
        default="split",
        show_default=True,
        help="What to do with documents that are longer than the encoder reads.",
    ),
)
_run_options = add_options(
    click.option(
        "--rejects",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File of rejected rows, which must not exist.  [default: COLLECTION.rejects.jsonl, with a number if it "
        "exists]",
    ),
    click.option(
        "--dry-run", is_flag=True, help="Write nothing; report what would be written and how long it would take."
    ),
    click.option(
        "--stand-in",
        is_flag=True,
        help="Encode documents by the query encoder that care learn made, where the model of the other vectors no "
        "longer exists. These documents are marked, and searches find them less reliably.",
    ),
    any_language_option,
    bm25_language_option,
    click.option("--limit", type=click.IntRange(min=1), help="Number of rows to read.  [default: all]"),
    click.option(
        "--shard",
        type=ShardType(),
        default="1/1",
        show_default=True,
        help="Shard to ingest: i of n disjoint ones, for a job array.",
    ),
    click.option(
        "--bm25/--no-bm25",
        "sparse",
        default=None,
        help="Add a BM25 vector, for hybrid search.  [default: in a new collection; an existing one keeps what it has]",
    ),
    click.option(
        "--replace-others",
        is_flag=True,
        help="Delete points that another writer made of the same documents. They would be found twice.",
    ),
    click.option("--sync", is_flag=True, help="Delete points of documents that are no longer in the corpus."),
    deletion_option("Largest fraction of the stored points that --sync may delete."),
    click.option("--sync-despite-rejects", is_flag=True, help="Let --sync delete although rows were rejected."),
    click.option(
        "--sync-other-files",
        is_flag=True,
        help="Let --sync also delete documents of files that earlier runs read, and this one does not.",
    ),
)
storage_options = add_options(
    quantization_option,
    click.option("--on-disk", is_flag=True, help="Keep the vectors on disk."),
    click.option("--shards", type=click.IntRange(min=1), help="Number of shards.  [default: left to the server]"),
    click.option("--replicas", type=click.IntRange(min=1), help="Copies of each shard.  [default: left to the server]"),
    click.option("--shard-key", help="Write to the shards of this key, made where they are missing; needs a cluster."),
    click.option(
        "--index",
        "indexes",
        multiple=True,
        metavar="KEY[=TYPE]",
        help="Payload index for filters, also for an existing collection: keyword (default), integer, float, bool, "
        "datetime, text, uuid, or tenant. Repeatable.",
    ),
)
STORAGE_GROUP = {
    "Storage of a new collection": ["quantization", "on_disk", "shards", "replicas", "shard_key", "indexes"]
}
"""Group of the help for `storage_options`; a group before it may take some of them."""


@click.command(
    name="ingest",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    environment=BATCHES | PATIENCE,
    groups={
        "Options": [
            "collection",
            "model",
            "device",
            "endpoints",
            "path",
            "url",
            "sparse",
            "sync",
            "dry_run",
            "limit",
            "as_json",
        ],
        "Engine": ["engine"],
        "Corpus": [
            "id_field",
            "text_field",
            "title_field",
            "types",
            "form",
            "encoding",
            "rejects",
            "overflow",
            "shard",
        ],
        "Model": ["vector_name", "stand_in", "any_language"],
        "Server": ["shard_key"],
        "Deletion": ["replace_others", "max_delete_fraction", "sync_despite_rejects", "sync_other_files"],
        **STORAGE_GROUP,
        "Log": ["verbose"],
    },
)
@click.argument("corpus", nargs=-1, required=True)
@_collection_options
@target_options
@model_options(documents=True)
@row_options
@_run_options
@storage_options
@json_option
def command(
    corpus: tuple[str, ...],
    collection: str | None,
    vector_name: str | None,
    target: Target,
    load_model: LoadModel,
    as_json: bool,
    **options: Any,
) -> None:
    """Put documents into a Qdrant collection.

    CORPUS is one or more files or folders: .jsonl, .json, .csv, .tsv, .parquet, .txt or .md, also compressed as .gz or
    .zst; or - for standard input. A row has an id and a text, and optionally a title and metadata. Other fields become
    metadata. The id of a text file is its path below the folder that is named, so name the same folder in each run.

    Documents that are stored already are not encoded or written again. To continue an interrupted run, run the same
    command again. Rejected rows are listed in COLLECTION.rejects.jsonl with line number and reason; the exit code is 8.

    \b
    Example:
      care ingest corpus.jsonl
      care ingest corpus.jsonl.gz --url http://localhost:6333
      care ingest corpus.jsonl --endpoint http://gpu1:8000/v1,http://gpu2:8000/v1
      care ingest docs/ notes.csv --text-field body \\
        --collection guidelines --dry-run
    """
    from care_qdrant.corpus.files import check_corpus, corpus_name
    from care_qdrant.corpus.rows import Fields
    from care_qdrant.ingestion.ingest import ingest
    from care_qdrant.ingestion.rows import Reading
    from care_qdrant.progress import progress_bar
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.qdrant.create import Storage

    check_corpus(corpus, options["form"])
    if options["rejects"] is not None:
        require_writable(options["rejects"])
    is_named = collection is not None
    collection = collection or corpus_name(corpus)
    model = load_model()

    def tell(report: "IngestReport") -> None:
        # The sentence of an error comes once, on stderr.
        stopped = report.stopped if report.stopped in (None, "interrupted") else "error"
        with bars_cleared():
            if as_json:
                show_json(asdict(report) | {"stopped": stopped})
            else:
                echo(_summary(report, target, is_named, options))

    verb = "compared" if options["dry_run"] else "stored"
    with _database(target, options["dry_run"]) as client, progress_bar(collection, verb) as show:
        report = ingest(
            corpus,
            model,
            Collection(client, collection, retries(), shard_key=options["shard_key"]),
            vector_name=vector_name,
            settings=_settings(options),
            storage=settings_of(Storage, options),
            reading=Reading(
                Fields(
                    options["id_field"],
                    options["text_field"],
                    options["title_field"],
                    types=options["types"],
                ),
                options["encoding"],
                options["rejects"],
                options["form"],
            ),
            on_progress=show,
            on_stopped=tell,
        )
    tell(report)
    if report.stand_ins:
        echo(
            f"{counted(report.stand_ins, 'point', 'have', of=report.points)} a vector of a learned query encoder, "
            "which stands in for the model of the others. With that model back, ingest the same documents without "
            "--stand-in: these are encoded again",
            err=True,
        )
    if report.other_vectors:
        names = " and ".join(repr(name) if name else "(unnamed)" for name in report.other_vectors)
        attach = next_command(f"care attach {report.collection} --vector-name NAME", model=False)
        echo(
            f"{counted(report.encoded, 'point', 'were')} encoded, whose {names} is missing or of an earlier text: "
            "searches by it miss what is new. The program that makes it has to run again; for one that care attach "
            f"made, run it, {attach} (and --model, where it is not the included model)",
            err=True,
        )
    if report.other_points and not options["replace_others"]:
        advice = "leave them out of the corpus" if options["stand_in"] else "--replace-others deletes those"
        echo(
            f"another writer made {counted(report.other_points, 'point')} of these documents, so they are found twice: "
            f"{advice}",
            err=True,
        )
    if report.rejected:
        listed = f", listed in {report.rejects_file}" if report.rejects_file else ""
        echo(f"rejected rows: {report.rejected:,}{listed}; {'; '.join(report.first_rejects)}", err=True)
        sys.exit(REJECTED_ROWS_EXIT_CODE)


def _summary(report: "IngestReport", target: Target, is_named: bool, options: dict[str, Any]) -> str:
    """Return what a person wants to know of a run."""
    from care_qdrant.progress import duration

    named = "" if is_named else " (the name of the corpus; --collection NAME gives another)"
    lines = []
    if report.estimate is not None:
        would = report.estimate
        size = f"{would.bytes / 1e6:,.1f} MB"
        lines.append(
            f"dry run into {report.collection}{named}: {counted(would.points, 'point')} to write, "
            f"{counted(would.tokens, 'token')} to encode, {size}; {report.unchanged:,} are stored as they are"
        )
        if report.deleted or (options["sync"] and not report.stopped):
            which = f", for example those of {', '.join(report.first_deleted)}" if report.first_deleted else ""
            lines.append(f"{counted(report.deleted, 'point')} would be deleted{which}")
        if would.seconds is not None:
            lines.append(f"about {duration(would.seconds)} with this engine")
            lines.append(
                f"measured: {would.tokens_per_second:,.0f} tokens/s, {would.documents_per_second:,.1f} documents/s, "
                f"padding {would.padding:.2f}, encoder idle {would.encoder_idle_fraction:.0%}"
            )
        return "\n".join(lines)
    kinds = ("encoded", "updated", "unchanged", "deleted", "rejected")
    said = ", ".join(f"{count:,} {name}" for name in kinds if (count := getattr(report, name)))
    speed = f", {report.tokens_per_second:,.0f} tokens/s" if report.tokens else ""
    time = f"{duration(report.seconds)}{speed}"
    if report.stopped:
        verb = "dry run stopped" if options["dry_run"] else "stopped"
        read = f"{counted(report.documents, 'document', 'were')} read so far ({said or 'nothing new'})"
        stored = f"{counted(report.points, 'point')} of this corpus {'is' if report.points == 1 else 'are'} stored"
        lines.append(f"{verb}: {stored}; {read}")
        lines.append(f"{report.collection}{named}: stopped after {time}")
    else:
        as_points = f"{counted(report.documents, 'document')} as {counted(report.chunks, 'point')}"
        vector = f"vector {report.vector_name}" if report.vector_name else "the unnamed vector"
        with_vector = f"{counted(report.points, 'point')} with {vector}"
        lines.append(f"done: {as_points} ({said or 'nothing new'})")
        lines.append(f"{report.collection}{named}: {with_vector}; {time}")
        lines.append(f"next: {search_command(report.collection, target)}")
    return "\n".join(lines)


def _database(target: Target, dry_run: bool) -> "AbstractContextManager[QdrantClient]":
    """Open the target; for a dry run that would have to create its folder, an empty database in memory."""
    if dry_run and target.path is not None and not target.path.exists():
        from qdrant_client import QdrantClient

        return closing(QdrantClient(":memory:"))
    return target.open(create=not dry_run)


def _settings(options: dict[str, Any]) -> "IngestSettings":
    from care_qdrant.ingestion.settings import IngestSettings, Shard
    from care_qdrant.qdrant.create import parse_indexes

    return settings_of(
        IngestSettings,
        options,
        shard=Shard(*options["shard"]),
        batch_tokens=batch_tokens(),
        indexes=parse_indexes(options["indexes"]),
    )


program = copy(command)
"""``care-ingest``: the command with the options that ``care ingest`` has from ``care``."""
program.params = list(command.params)
program = click.version_option(__version__, prog_name="care-ingest")(log_options(program))


def main() -> None:
    """Run `care-ingest`."""
    run(program)
