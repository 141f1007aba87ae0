"""Cautions that a report prints for its reader."""

from collections.abc import Iterator, Sequence

from care_benchmarks.paper import CMEDQA_1, CMEDQA_2, RERANK, RETRIEVAL, STS
from care_benchmarks.results import TaskInfo
from care_benchmarks.search import QdrantSearch
from care_benchmarks.systems import EvaluatedSystem

_PAPER_TASKS = {CMEDQA_1, CMEDQA_2, RETRIEVAL, RERANK, STS}


def notes_for(searches: Sequence[QdrantSearch], tasks: Sequence[TaskInfo]) -> list[str]:
    """Return the cautions that apply to this run."""
    systems = [search.system for search in searches]
    return [*_on_tasks(tasks), *_on_training(systems), *_on_sides(systems, tasks), *_on_path(searches)]


def _on_tasks(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    own = [task.name for task in tasks if task.name not in _PAPER_TASKS]
    if own:
        yield (
            f"{', '.join(own)}: not tasks of the paper. They have its shapes, not its data, so its figures cannot be "
            "set against these."
        )
    if any(task.kind != "sts" for task in tasks):
        yield (
            "Judgements are incomplete, as in every set of this kind: a relevant document that nobody judged counts "
            "as wrong. Differences between systems are safer to read than the figures themselves; "
            "care-bench audit exports what is worth judging."
        )


def _on_training(systems: Sequence[EvaluatedSystem]) -> Iterator[str]:
    for system in systems:
        card = system.model.card
        if card is None or system.mode != "dense":
            continue
        stages = [str(stage.get("stage", stage.get("name", "?"))) for stage in card.stages]
        yield (
            f"{system.name} was trained in {len(stages)} stages ({', '.join(stages) or 'none recorded'}). Its "
            "symmetric controls are its own two encoders, without a further step: they are controls of the "
            "architecture, not of equal training compute, which neither this run nor the paper offers."
        )


def _on_sides(systems: Sequence[EvaluatedSystem], tasks: Sequence[TaskInfo]) -> Iterator[str]:
    if any(task.kind == "sts" for task in tasks) and any(system.model.card for system in systems):
        yield (
            "STS is shown for each choice of encoders (qd: first sentence by the query encoder, second by the document "
            "encoder; qq; dd), since the paper does not say which it took. For a symmetric system all three are equal "
            "unless its prompts differ."
        )


def _on_path(searches: Sequence[QdrantSearch]) -> Iterator[str]:
    names = [search.system.name for search in searches if search.multiplied]
    if names:
        yield (
            f"{', '.join(names)}: answered by one matrix product over the vectors that are stored in Qdrant, after the "
            "first queries of each task were checked against Qdrant's own answers: the embedded database compares "
            "sparse vectors in pure Python, a second per query. Their speed is that of the embedded database."
        )
