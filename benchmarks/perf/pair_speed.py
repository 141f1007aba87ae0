"""Speed and memory of an included pair: its queries by the table, and by all layers of its document encoder.

The two take turns: all queries by one, then by the other, in rounds; then also query by query, where the layers leave
nothing of the table in the processor's caches.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click
from care_benchmarks.taskfiles import read_corpus

from care_qdrant.model.care_model import CareModel
from care_qdrant.types import embedded_text

from .measured import output_option, save_measured

QUERY_PROMPT = "query: "
TOKENS = (80, 130)
"""Lengths of the documents that are encoded."""
DOCUMENTS = 128
_MEMORY = """
import sys
from benchmarks.perf.memory import watched_memory
with watched_memory() as peak:
    from care_qdrant import CareModel
    model = CareModel.load(sys.argv[1])
    {work}
print(peak.resident_mib)
"""
_PROCESSES = {
    "nothing": "",
    "queries": "model.encode_query(['糖尿病人能吃西瓜吗'])",
    "documents": "model.encode_document([text.strip() for text in sys.stdin])",
}


def cpu_ms(work: Callable[[], object]) -> float:
    """Return the CPU time of a call in milliseconds."""
    begin = time.process_time()
    work()
    return (time.process_time() - begin) * 1e3


@click.command()
@click.argument("sample", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--model", default="built-in", show_default=True, help="Pair: a name or a folder.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds after a first one.")
@output_option
def main(sample: Path, model: str, rounds: int, output: Path) -> None:
    """Encode the natural questions and some documents of SAMPLE, with one thread.

    \b
    Example:
      python -m benchmarks.perf.pair_speed examples/sample --output benchmarks/results/pair-speed.json
    """
    pair = CareModel.load(model)
    rows = (sample / "natural.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [str(json.loads(row)["text"]) for row in rows]
    table, layers = pair.query_encoder, pair.document_encoder
    ways = {
        "table": lambda text: table.encode([text]),
        "layers": lambda text: layers.encode([text], prompt=QUERY_PROMPT),
    }
    passes = {name: [list[float]() for _ in queries] for name in ways}
    for _ in range(1 + rounds):
        for name, encode in ways.items():
            for its, query in zip(passes[name], queries, strict=True):
                its.append(cpu_ms(lambda: encode(query)))  # noqa: B023
    times = {name: [statistics.median(its[1:]) for its in found] for name, found in passes.items()}
    alternating = {name: list[float]() for name in ways}
    for query in queries:
        for name, encode in ways.items():
            alternating[name].append(cpu_ms(lambda: encode(query)))  # noqa: B023
    texts = [embedded_text(document.title, document.text) for document in read_corpus(sample / "corpus.jsonl")]
    tokens = pair.document_tokenizer.count_tokens(texts)
    chosen = [text for text, count in zip(texts, tokens, strict=True) if TOKENS[0] <= count <= TOKENS[1]][:DOCUMENTS]
    taken = [cpu_ms(lambda: layers.encode(chosen)) for _ in range(rounds)]
    save_measured(
        output,
        {
            "queries": len(queries),
            "query_cpu_ms": _medians(times),
            "query_cpu_ms_by_turns": _medians(alternating),
            "documents": len(chosen),
            "tokens_per_document": round(statistics.mean(pair.document_tokenizer.count_tokens(chosen)), 1),
            "documents_per_core_second": round(len(chosen) / statistics.median(taken) * 1e3, 1),
            "folder_mb": round(_size(pair) / 1e6, 1),
            "peak_memory_mib": {name: _memory(model, work, chosen) for name, work in _PROCESSES.items()},
        },
    )


def _medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(its), 3) for name, its in times.items()}


def _size(pair: CareModel) -> int:
    return sum(file.stat().st_size for file in pair.folder.rglob("*") if file.is_file()) if pair.folder else 0


def _memory(model: str, work: str, texts: list[str]) -> float:
    """Return the peak memory of a process of its own, in MiB."""
    command = [sys.executable, "-c", _MEMORY.format(work=work), model]
    lines = "\n".join(" ".join(text.split()) for text in texts)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    main()
