"""``care learn``: a query encoder learned from the vectors that a collection holds."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from care_qdrant.console.groups import CONTEXT, GroupedCommand
from care_qdrant.console.options import FiniteRange, Target, json_option, target_options
from care_qdrant.console.reports import search_command, show_report
from care_qdrant.console.text import echo

if TYPE_CHECKING:
    from care_trainer.learn.learn import Progress
    from care_trainer.learn.outcome import LearnReport
    from care_trainer.learn.settings import LearnSettings


@click.command(
    name="learn",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    groups={
        "Options": ["vector_name", "output", "update", "watch_seconds", "force", "path", "url", "as_json"],
        "Reading": ["text_field", "sample"],
        "Old model": ["queries", "document"],
    },
)
@click.argument("collection")
@click.option(
    "--vector", "vector_name", help="Dense vector to learn from; '' is the unnamed one.  [default: the only one]"
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Destination of the CARE folder.  [default: COLLECTION-queries]",
)
@click.option("--text-field", help="Payload field with the text, such as body or document.body.  [default: guessed]")
@click.option(
    "--sample",
    type=click.IntRange(min=200),
    default=100_000,
    show_default=True,
    help="Largest number of points to read, drawn at random.",
)
@click.option("--update", is_flag=True, help="Continue from the folder that an earlier run wrote to --output.")
@click.option(
    "--watch",
    "watch_seconds",
    type=FiniteRange(0, min_open=True),
    metavar="SECONDS",
    help="Run until SIGTERM or Ctrl-C: every SECONDS, update the encoder if 5 % of the points are new. With --json, "
    "each update prints one line.  [default: learn once]",
)
@click.option("--force", is_flag=True, help="Register the query encoder even if its quality is below the limit.")
@click.option(
    "--document",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of the sentence-transformers model that made the vectors, to become the document side.",
)
@click.option(
    "--queries",
    type=click.Path(path_type=Path, exists=True),
    help="JSON Lines of real questions: 'text', and the 'vector' of the old model. Half of them are used for training, "
    "the other half for measuring the agreement with that model. Lines with 'relevant', a list of ids of points or "
    "documents, need no vector and are only used for measuring. Or a collection's folder of care serve --record.",
)
@target_options
@json_option
def command(
    collection: str,
    vector_name: str | None,
    output: Path | None,
    text_field: str | None,
    sample: int,
    update: bool,
    watch_seconds: float | None,
    force: bool,
    document: Path | None,
    queries: Path | None,
    target: Target,
    as_json: bool,
) -> None:
    """Learn a query encoder from the vectors of COLLECTION, so that queries do not need the model that made them.

    The command reads texts and vectors, and trains a table of token vectors on the CPU in minutes. It needs no labels,
    no queries and no access to the old model, and changes no stored vector. The result is a CARE folder that encodes
    queries only. Its quality is measured on held-out documents; below the limit it is not registered, and searches
    with it are refused. A report and a picture are in OUTPUT/learn. To continue an interrupted run, run the same
    command again.

    \b
    Example:
      care learn articles --url http://localhost:6333
      care search "糖尿病人能吃西瓜吗" --collection articles \\
        --model articles-queries --url http://localhost:6333
      care learn articles --url http://localhost:6333 --update
      care learn articles --url http://localhost:6333 --watch 600
    """
    from care_qdrant.console.watching import passes
    from care_qdrant.errors import InputError, needs_extra

    with needs_extra("learn", "care learn"):
        from care_qdrant.search.judged import read_queries
        from care_trainer.learn.learn import learn
        from care_trainer.learn.settings import LearnSettings

    settings = LearnSettings(sample=sample)
    folder = output or Path(f"{collection}-queries")
    if update and not folder.is_dir():
        raise InputError(f"{folder}: does not exist; --update continues from the folder of an earlier run")
    learn_it = partial(
        learn,
        output=folder,
        vector_name=vector_name,
        text_field=text_field,
        document=document,
        questions=None if queries is None else partial(read_queries, queries),
        force=force,
    )
    if watch_seconds is None:
        _learn(target, learn_it, collection, folder, settings, update=update, as_json=as_json)
    else:
        follow = partial(_follow, target, learn_it, collection, folder, settings, as_json)
        for _ in passes(follow, watch_seconds):
            pass


class Ended(Exception):
    """A signal ended the training; the same command resumes it."""


def _follow(
    target: Target,
    learn_it: "Callable[..., LearnReport]",
    collection: str,
    folder: Path,
    settings: "LearnSettings",
    as_json: bool,
    stop: threading.Event,
) -> None:
    """Learn an encoder if there is none yet, or update it if enough points are new."""
    from care_qdrant import Collection
    from care_trainer.learn.earlier import unseen_fraction
    from care_trainer.learn.settings import NEWS

    def end(*_: object) -> None:
        if stop.is_set():
            raise Ended

    if update := folder.is_dir():
        with target.open() as client:
            resolved = Collection(client, collection).resolve()
            if unseen_fraction(folder, resolved, settings) < NEWS:
                return
    with suppress(Ended):
        _learn(target, learn_it, collection, folder, settings, update=update, as_json=as_json, on_progress=end)


def _learn(
    target: Target,
    learn_it: "Callable[..., LearnReport]",
    collection: str,
    folder: Path,
    settings: "LearnSettings",
    *,
    update: bool,
    as_json: bool,
    on_progress: "Progress" = lambda _part, _done, _total: None,
) -> None:
    """Learn once, write the report and print it."""
    from care_qdrant import Collection
    from care_qdrant.errors import InputError, MissingExtra
    from care_qdrant.progress import parts_bar
    from care_trainer.learn.report import paragraphs, plot, write_report
    from care_trainer.learn.settings import FOLDER

    with target.open() as client, parts_bar() as show:

        def note(part: str, done: int, total: int) -> None:
            show(part, done, total)
            on_progress(part, done, total)

        place = Collection(client, collection)
        report = learn_it(place, settings=settings, start=folder if update else None, on_progress=note)
    written = Path(report.folder)
    write_report(written, report)
    try:
        plot(report, written / FOLDER / "report.png")
    except MissingExtra as missing:
        echo(f"no plot: {missing}", err=True)
    if as_json:
        show_report(replace(report, examples=[]), as_json=True)
    else:
        for paragraph in paragraphs(report):
            echo(paragraph.replace("**", "").removeprefix("# "))
    if report.registered and not as_json:
        echo(f"next: {search_command(report.collection, target, str(folder))}")
    if not report.registered:
        raise InputError(
            f"{written}: was written but not registered: {report.refused}. Register it nevertheless with: --force"
        )
