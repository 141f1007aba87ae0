"""What layers on the document side gain over a table of token vectors on both sides, on sources that neither has read.

Both are stages of one run of `care-train` (`residual-layers.toml`): the table, then query table and document layers
together, where the layers begin as the identity. They are scored on a split of `token_tables`, dense and with BM25.
"""

import gzip
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from care_benchmarks.statistics import compare_with_base
from care_trainer.cli import care_train
from sentence_transformers import SentenceTransformer

from benchmarks.experiments.token_tables import Counted, Scores, Task, built_in_tokenizer, ndcg_at_10, read_task
from benchmarks.perf.measured import output_option, save_measured
from care_qdrant.search.fusion import DEFAULT_ALPHA

CONFIGURATION = Path(__file__).with_name("residual-layers.toml")
BASE, LAYERS = "static", "joint"


def write_split(task: Task, folder: Path) -> None:
    """Write the pairs and the held-out retrieval set of a split as `care-train` reads them."""
    (folder / "unseen").mkdir(parents=True, exist_ok=True)

    def write(name: str, rows: Iterable[dict[str, Any]]) -> None:
        with gzip.open(folder / name, "wt", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    write("pairs.jsonl.gz", task.pairs)
    write("unseen/corpus.jsonl.gz", ({"id": f"d{row}", "text": text} for row, text in enumerate(task.documents)))
    write("unseen/queries.jsonl.gz", ({"id": f"q{row}", "text": text} for row, (_, text, _) in enumerate(task.queries)))
    write(
        "unseen/qrels.jsonl.gz",
        (
            {"query_id": f"q{row}", "document_id": f"d{answer}", "score": 1}
            for row, (_, _, relevant) in enumerate(task.queries)
            for answer in sorted(relevant)
        ),
    )


def score(stage: Path, counted: Counted) -> tuple[Scores, Scores]:
    """Return nDCG@10 of each question of a stage's pair, dense and with BM25 at the default weight."""
    query, document = (SentenceTransformer(str(stage / side), device="cpu") for side in ("query", "document"))
    queries = query.encode([text for _, text, _ in counted.task.queries], normalize_embeddings=True)
    cosine = queries @ document.encode(counted.task.documents, normalize_embeddings=True).T
    mixed = DEFAULT_ALPHA * cosine + (1 - DEFAULT_ALPHA) * counted.lexical
    return ndcg_at_10(cosine, counted.task.queries), ndcg_at_10(mixed, counted.task.queries)


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--work", type=click.Path(path_type=Path), required=True, help="Folder of the split and the run.")
@output_option
def main(data: Path, work: Path, output: Path) -> None:
    """Train a table and layers over it on the pairs of DATA, and compare them; an interrupted run goes on.

    \b
    Example:
      python -m benchmarks.experiments.residual_layers DATA --work residual --output residual-layers.json
    """
    counted = Counted(read_task(data, "unseen"), built_in_tokenizer())
    if not (work / "data").is_dir():
        write_split(counted.task, work / "data")
    run = work / "runs" / "residual-layers"
    settings = {"data_root": work / "data", "output": run}
    options = [option for key, value in settings.items() for option in ("--set", f"{key}={value.resolve()}")]
    care_train.main(["run", str(CONFIGURATION), *options, "--resume"], standalone_mode=False)
    dense, mixed = (
        dict(zip((BASE, LAYERS), found, strict=True))
        for found in zip(*(score(run / stage, counted) for stage in (BASE, LAYERS)), strict=True)
    )
    found = {
        "questions": len(counted.task.queries),
        "dense": {name: round(float(np.mean(values)), 4) for name, values in dense.items()},
        "with_bm25": {name: round(float(np.mean(values)), 4) for name, values in mixed.items()},
        "gain": asdict(compare_with_base(BASE, dense)[0]),
        "gain_with_bm25": asdict(compare_with_base(BASE, mixed)[0]),
    }
    save_measured(output, found)


if __name__ == "__main__":
    main()
