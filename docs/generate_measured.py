"""Write the measured part of README.md from the committed results. `--check` fails when it is not up to date."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"


def blocks() -> dict[str, str]:
    """Give the parts of the README that are measured, by the name in their markers."""
    parts = {"asymmetry": _asymmetry(), "accuracy": _accuracy(), "promises": [*_promises(), "", *_machine()]}
    return {name: "\n".join(lines) + "\n" for name, lines in parts.items()}


def _asymmetry() -> Iterator[str]:
    """The grid's lines that tell what the pair gains, and what each stage does to it."""
    lines = {line["preset"]: line for line in _read("ablations-dev.json")["lines"]}
    rows = {
        "symmetric-document": "multilingual-e5-small on both sides (12 layers)",
        "full": "**token vectors ask, e5-small answers** (bag, Stage I, Stage II)",
        "without-joint": "… without Stage II",
        "without-align": "… without Stage I",
        "longer-joint": "… Stage II alone, for as many rows as the whole recipe",
        "symmetric-query": "token vectors on both sides",
    }
    yield "| queries / documents | nDCG@10, mean of seeds | gap closed |"
    yield "|---|---:|---:|"
    for preset, what in rows.items():
        line = lines[preset]
        yield f"| {what} | {line['means']['nDCG@10']:.3f} | {_gap(line)} |"


def _gap(line: dict[str, Any]) -> str:
    if line["gap_closed"] is None or line["gap_closed"] < 0:
        return "–"
    low, high = line["gap_interval"]["low"], line["gap_interval"]["high"]
    return f"{line['gap_closed']:.0%} ({low:.0%}–{high:.0%})"


def _accuracy() -> Iterator[str]:
    result = _read("dev/result.json")
    tasks = [task for task in result["tasks"] if not task["name"].endswith(("-qq", "-dd"))]
    yield "| system | " + " | ".join(f"{_short(task['name'])} {task['measure']}" for task in tasks) + " |"
    yield "|---|" + "---:|" * len(tasks)
    for system in result["systems"]:
        scores = {score["task"]: score for score in system["scores"]}
        cells = [_score(scores.get(task["name"])) for task in tasks]
        yield f"| {system['name']} ({system['description']}) | " + " | ".join(cells) + " |"


def _promises() -> Iterator[str]:
    start = {entry["command"]: entry for entry in _read("command-start.json")["starts"]}
    throughput, memory = _read("ingestion-throughput.json"), _read("ingestion-memory.json")
    kills = _read("ingestion-kill.json")
    speed = _read("llama-speed.json")
    singles = {entry["stack"]: entry for entry in speed["single"]}
    loads = {(entry["stack"], entry["clients"]): entry["cpu_ms_per_query"] for entry in speed["load"]}
    rows = {run["rows"]: run["peak_memory_mib"] for run in memory["runs"]}
    attach, publish = _read("deployment-kill-attach.json"), _read("deployment-kill-promote.json")
    attached = {run["points"]: run["peak_memory_mib"] for run in _read("deployment-memory.json")["results"]}
    yield "| promise | measured | how |"
    yield "|---|---|---|"
    yield (
        f"| killed with `kill -9` at a random moment, then run once more | {kills['good']} of {kills['trials']} "
        "whole: nothing lost, doubled or encoded again | `python -m tests.reliability kill-ingest` |"
    )
    yield (
        f"| the same for attach and detach, promote and publish | {attach['good']} of {attach['trials']}, "
        f"{publish['good']} of {publish['trials']} | `python -m tests.reliability kill-attach`, `kill-publish` |"
    )
    yield (
        f"| embedded ingestion against stock `upload_points`, 768-d | {throughput['ratio']:.0f}× | "
        "`python -m benchmarks.perf.ingestion throughput` |"
    )
    yield (
        f"| memory at {max(rows):,} rows against {min(rows):,} | {max(rows.values()):.0f} against "
        f"{min(rows.values()):.0f} MiB | `python -m benchmarks.perf.ingestion memory` |"
    )
    yield (
        f"| memory of attach at {max(attached):,} points against {min(attached):,} | {attached[max(attached)]:.0f} "
        f"against {attached[min(attached)]:.0f} MiB | `python -m benchmarks.perf.attach memory` |"
    )
    for precision in ("fp32", "int8"):
        yield (
            f"| one query through `CareEmbedding`, BERT-base shape, {precision}, against `HuggingFaceEmbedding` | "
            f"{singles[f'care-{precision}']['times_faster']:.1f}× less CPU | "
            "`python -m benchmarks.perf.embedding speed` |"
        )
    most = max(clients for _, clients in loads)
    gain = loads[("huggingface", 1)] / loads[("care-int8", most)]
    what = f"{most} concurrent queries, int8, against single queries of the stock class"
    yield f"| {what} | {gain:.1f}× less CPU a query | `python -m benchmarks.perf.embedding speed` |"
    for system in _read("dev-speed/result.json")["systems"]:
        one = next(load for load in system["speed"]["whole"] if load["concurrency"] == 1)
        rate, p50, p99 = one["queries_per_second"], one["latency"]["p50_ms"], one["latency"]["p99_ms"]
        how = "one client, embedded, 8,913 documents"
        speed_of_it = f"{rate:.1f} queries/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        yield f"| {system['name']}: {how} | {speed_of_it} | `care-bench run` |"
    for command, entry in start.items():
        torch = "with" if entry["reads_torch"] else "without"
        spent = f"{entry['cpu_seconds']:.2f} CPU s, {torch} torch"
        yield f"| `{command}` from a cold start | {spent} | `python -m benchmarks.perf.command_start` |"


def _machine() -> Iterator[str]:
    places = {"scores": "dev/result.json", "the pair's speed": "dev-speed/result.json", "BERT-base": "llama-speed.json"}
    told = []
    for what, name in places.items():
        machine = _read(name)["machine"]
        told.append(f"{what} on {machine['cpu']} at commit {machine['commit']}")
    yield (
        f"Two shared cores, 24 GiB, no GPU: {'; '.join(told)}. Each file under `benchmarks/results/` names its own "
        "machine, commit and load."
    )


def _score(score: dict[str, Any] | None) -> str:
    if score is None:
        return "–"
    low, high = score["interval"]["low"], score["interval"]["high"]
    return f"{score['value']:.3f} ({low:.3f}–{high:.3f})"


def _short(task: str) -> str:
    return task.removeprefix("dev-")


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def rendered(readme: str) -> str:
    """Give README.md with the measured parts in their places."""
    for name, block in blocks().items():
        begin, end = f"<!-- {name}: make docs -->\n", f"<!-- /{name} -->\n"
        before, _, rest = readme.partition(begin)
        readme = before + begin + block + end + rest.partition(end)[2]
    return readme


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        sys.exit(0 if rendered(text) == text else "README.md is out of date: make docs")
    README.write_text(rendered(text), encoding="utf-8")
