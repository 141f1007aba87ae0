"""Write the measured parts of docs/evidence from benchmarks/results. `--check` compares them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def pages() -> dict[Path, dict[str, str]]:
    """Return the measured parts by page, and there by the name in their markers."""
    parts = {
        ROOT / "docs/evidence/results.md": {
            "accuracy": _accuracy(),
            "six sources": _six_sources(),
            "english": _english(),
            "pair speed": _pair_speed(),
            "promises": [*_promises(), "", *_machine()],
            "ingestion into a server": _ingestion(),
            "ways": _ways("server-index-100000.json"),
            "ways of a million": _ways("server-index-1000000.json"),
            "restarts of a million": _restarts("server-index-1000000.json"),
            "loading": _loading(),
            "searches beside a load": _beside(),
            "filters": _filters(),
            "search on a server": _search(),
        },
        ROOT / "docs/evidence/engines.md": {"gpu": _gpu()},
        ROOT / "docs/evidence/service.md": {"servers": _servers(), "detour": _detour(), "clients": _clients()},
    }
    return {page: {name: "\n".join(lines) + "\n" for name, lines in blocks.items()} for page, blocks in parts.items()}


def _accuracy() -> Iterator[str]:
    result = _read("dev/result.json")
    tasks = [task for task in result["tasks"] if not task["name"].endswith(("-qq", "-dd"))]
    yield "| system | " + " | ".join(f"{_short(task['name'])} {task['measure']}" for task in tasks) + " |"
    yield "|---|" + "---:|" * len(tasks)
    for system in result["systems"]:
        scores = {score["task"]: score for score in system["scores"]}
        cells = [_score(scores.get(task["name"])) for task in tasks]
        yield f"| {system['name']} ({system['description']}) | " + " | ".join(cells) + " |"


def _six_sources() -> Iterator[str]:
    """The included pair and other tables on the sources of the choices."""
    rows = {row["system"]: row for row in _read("six-sources.json")["rows"]}
    shown = {
        "the document encoder on both sides": "the document encoder on both sides",
        "the pair": "**the pair**",
        "the query encoder on both sides": "the query encoder on both sides",
        "BM25": "BM25; with weights of query terms",
        "hybrid, the recorded share": "**the pair with BM25, as by default**",
        "hybrid, without weights of query terms": "… without weights of query terms",
        "the document encoder on both sides, hybrid": "the document encoder on both sides, with BM25",
        "Stage I, as included": "table trained again, three seeds",
        "… and Stage II": "… and Stage II (questions to their documents)",
        "Stage I from a random start": "… from a random start in place of the encoder's vectors of the tokens",
        "Stage II alone": "… Stage II in place of Stage I",
        "the start alone": "… the start without training",
        "Stage I, twice the steps": "… twice the steps (one seed)",
        "Stage I, without soft targets": "… each text's own vector as its target (one seed)",
        "Stage I, half the temperature": "… half the temperature; twice (one seed)",
    }
    second = {
        "BM25": "BM25, with weights of query terms",
        "Stage I, half the temperature": "Stage I, twice the temperature",
    }
    yield "| | nDCG@10 |"
    yield "|---|---:|"
    for name, what in shown.items():
        figures = [rows[name], *([rows[second[name]]] if name in second else [])]
        means = "; ".join(f"{row['mean']:.3f}" for row in figures)
        seeds = rows[name]["seeds"]
        yield f"| {what} | {means}{f' ({min(seeds):.3f}–{max(seeds):.3f})' if seeds else ''} |"


def _english() -> Iterator[str]:
    """Known-item search in the documentation of English packages."""
    rows = _read("known-items.json")["rows"]
    cells = {(row["system"], row["package"]): row for row in rows}
    packages = list(dict.fromkeys(row["package"] for row in rows))
    yield "| | " + " | ".join(f"{name} ({cells['the pair', name]['questions']:,})" for name in packages) + " |"
    yield "|---|" + "---:|" * len(packages)
    for system in dict.fromkeys(row["system"] for row in rows):
        means = [f"{cells[system, name]['ndcg_at_10']:.3f}" for name in packages[:-1]]
        yield f"| {system} | " + " | ".join([*means, _measured(cells[system, packages[-1]])]) + " |"


def _measured(row: dict[str, Any]) -> str:
    return f"{row['ndcg_at_10']:.3f} ({row['interval']['low']:.3f}–{row['interval']['high']:.3f})"


def _pair_speed() -> Iterator[str]:
    speed = _read("pair-speed.json")
    in_a_row, by_turns, memory = speed["query_cpu_ms"], speed["query_cpu_ms_by_turns"], speed["peak_memory_mib"]
    yield "| | table | all twelve layers, the same 8 bits |"
    yield "|---|---:|---:|"
    yield f"| a query, one after the other, CPU ms | {in_a_row['table']:.2f} | {in_a_row['layers']:.1f} |"
    yield f"| a query, the two by turns | {by_turns['table']:.2f} | {by_turns['layers']:.1f} |"
    yield f"| peak memory of a process that only encodes, MiB | {memory['queries']:.0f} | {memory['documents']:.0f} |"
    yield ""
    yield (
        f"A core encodes {speed['documents_per_core_second']:.0f} documents of {speed['tokens_per_document']:.0f} "
        f"tokens a second. The folder has {speed['folder_mb']:.0f} MB."
    )


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
        f"| embedded ingestion against stock `upload_points`, 768-d | {throughput['ratio']:.1f}× | "
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
    for system in _read("dev/result.json")["systems"]:
        one = next(load for load in system["speed"]["whole"] if load["concurrency"] == 1)
        rate, p50, p99 = one["queries_per_second"], one["latency"]["p50_ms"], one["latency"]["p99_ms"]
        how = "one client, embedded, 8,913 documents"
        speed_of_it = f"{rate:.1f} queries/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        yield f"| {system['name']}: {how} | {speed_of_it} | `care-bench run` |"
    first, (now, before) = _read("first-minute.json"), _read("first-minute.json")["wheels"]
    how = "`python -m benchmarks.perf.first_minute`"
    yield (
        f"| an empty environment to the first answer (`make demo`): wheels | {now['downloaded_mb']:,.0f} MB; "
        f"{before['downloaded_mb']:,.0f} MB when documents needed torch, unpacked {before['unpacked_mb']:,.0f} MB | "
        f"{how} |"
    )
    spent = sum(step["cpu_seconds"] for step in first["steps"])
    yield (
        f"| the same: seconds, on a machine with load {first['machine']['load_average']:.0f} | to the first answer "
        f"{first['seconds_to_the_first_answer']:.0f}, to the first query vector "
        f"{first['seconds_to_the_first_query_vector']:.0f}; {spent:.0f} CPU s | {how} |"
    )
    for command, entry in start.items():
        torch = "with" if entry["reads_torch"] else "without"
        spent = f"{entry['cpu_seconds']:.2f} CPU s ({entry['of_client_import']:.2f}×), {torch} torch"
        yield f"| `{command}` from a cold start | {spent} | `python -m benchmarks.perf.command_start` |"


def _machine() -> Iterator[str]:
    places = {
        "the pair": "dev/result.json",
        "cold starts": "command-start.json",
        "embedded ingestion": "ingestion-throughput.json",
        "BERT-base": "llama-speed.json",
    }
    measured: dict[str, list[str]] = {}
    for what, name in places.items():
        machine = _read(name)["machine"]
        measured.setdefault(f"on {machine['cpu']} at commit {machine['commit']}", []).append(what)
    told = "; ".join(f"{', '.join(what)} {where}" for where, what in measured.items())
    yield (
        f"Two cores, 24 GiB, no GPU: {told}. Each file under `benchmarks/results/` names its own machine, commit and "
        "load."
    )


def _ingestion() -> Iterator[str]:
    """Cost of ingestion into a server over HTTP beside that of the stock ways."""
    result = _read("server-ingestion.json")
    names = {
        "care": "`care ingest`",
        "upload_points": "`upload_points`",
        "llama-index": "LlamaIndex's `QdrantVectorStore`",
    }
    machine = result["machine"]
    yield (
        f"{result['points']:,} ready vectors of {result['dim']} dimensions, Qdrant {result['server']}, medians of "
        f"turns; client and server share {machine['cpus_usable']} cores of {machine['cpu']}, load "
        f"{machine['load_average']:.1f} at the end, commit {machine['commit']}."
    )
    yield ""
    yield "| | client CPU s per 10,000 | server CPU s per 10,000 | points/s |"
    yield "|---|---:|---:|---:|"
    for way, cost in result["http"].items():
        yield (
            f"| {names[way]} | {cost['client_cpu_seconds_per_10k']:.2f} | {cost['server_cpu_seconds_per_10k']:.2f} | "
            f"{cost['points_per_second']:,.0f} |"
        )


def _ways(name: str) -> Iterator[str]:
    """Return the cost of each way to hold vectors on a server, and what its searches find."""
    kinds = ("default", "ef 256", *(f"oversampling {times}" for times in (2, 4, 8, 16)))
    yield (
        "| vectors | Qdrant | server CPU s to build | MiB, built / started again | bytes a point | recall@10 | "
        "ef 256 | 2× rescored | 4× | 8× | 16× | p50 ms / CPU ms |"
    )
    yield "|---|---|" + "---:|" * 10
    for way, measured in _read(name)["ways"].items():
        searches, restart = measured["searches"], measured["restarts"][0]
        default = searches["default"]
        recalls = [f"{searches[kind]['recall_at_10']:.3f}" if kind in searches else "–" for kind in kinds]
        memory = f"{measured['memory']['resident_mib']:,.0f} / {restart['memory_in_use']['resident_mib']:,.0f}"
        seconds = measured["build"]["server_cpu_seconds"]
        yield (
            f"| {way} | {measured['server']} | {seconds:,.{0 if seconds >= 10 else 1}f} | {memory} | "
            f"{measured['storage_bytes_per_point']:,.0f} | {' | '.join(recalls)} | "
            f"{default['p50_ms']:.1f} / {default['server_cpu_ms']:.1f} |"
        )


def _restarts(name: str) -> Iterator[str]:
    """A server that was killed and started again, with nothing in the page cache, also with little memory."""
    yield (
        "| vectors | limit, MiB | s until ready | MiB in use | slowest of the first 20, ms | p50 / p95 ms | "
        "page faults a query |"
    )
    yield "|---|" + "---:|" * 6
    for way, measured in _read(name)["ways"].items():
        for restart in measured["restarts"]:
            found = restart["queries"]
            yield (
                f"| {way} | {restart['limit_mib'] or 'none'} | {restart['ready_seconds']:.1f} | "
                f"{restart['memory_in_use']['resident_mib']:,.0f} | {max(restart['first_ms']):,.0f} | "
                f"{found['p50_ms']:.1f} / {found['p95_ms']:.1f} | {restart['page_faults_per_query']:.1f} |"
            )


def _loading() -> Iterator[str]:
    """A graph that is built while a collection is loaded, against one at the end: every round."""
    loads = _read("server-index-100000.json")["loading"]
    yield "| points | graph | client CPU s | server CPU s | s to upload | s until all is built |"
    yield "|---:|---|---:|---:|---:|---:|"
    for points in sorted({load["points"] for load in loads}):
        for deferred in (True, False):
            builds = [load["build"] for load in loads if (load["points"], load["deferred"]) == (points, deferred)]
            fields = ("client_cpu_seconds", "server_cpu_seconds", "upload_seconds", "green_seconds")
            cells = [" / ".join(f"{build[field]:.1f}" for build in builds) for field in fields]
            yield f"| {points:,} | {'at the end' if deferred else 'meanwhile'} | {' | '.join(cells)} |"


def _beside() -> Iterator[str]:
    """Searches of a collection that is at rest, is loaded, and builds its graph."""
    beside = _read("server-index-100000.json")["beside"]
    yield "| searches | p50 / p95 ms | server CPU ms a query, with all else |"
    yield "|---|---:|---:|"
    number = f"{beside['points']:,}"
    states = {
        "at_rest": f"at rest, {number} points",
        "while_loaded": f"while {number} more are loaded",
        "while_built": "while their graph is built",
    }
    for state, words in states.items():
        found = beside[state]
        yield f"| {words} | {found['p50_ms']:.1f} / {found['p95_ms']:.1f} | {found['server_cpu_ms']:.1f} |"


def _filters() -> Iterator[str]:
    """Recall and median time of filtered searches, without and with ACORN."""
    collections = _read("server-index-100000.json")["filters"].values()
    searches = [one for collection in collections for one in collection["searches"]]
    found = {(one["indexed"], one["filter"], one["acorn"]): one["found"] for one in searches}
    kinds = list(dict.fromkeys(one["filter"] for one in searches))
    yield "| payload index | " + " | ".join(kinds) + " |"
    yield "|---|" + "---:|" * len(kinds)
    for indexed in dict.fromkeys(one["indexed"] for one in searches):
        for acorn in (False, True):
            line = (found[indexed, kind, acorn] for kind in kinds)
            cells = [f"{one['recall_at_10']:.3f}, {one['p50_ms']:.1f} ms" for one in line]
            yield f"| {indexed}{', ACORN' if acorn else ''} | {' | '.join(cells)} |"


def _search() -> Iterator[str]:
    """Median time of a query by what it goes through, for three sizes of the collection."""
    results = [_read(f"server-search-{points}.json") for points in (10_000, 100_000, 1_000_000)]
    found = [{(one["query"], one["through"]): one["p50_ms"] for one in result["latencies"]} for result in results]
    ways = {
        "raw HTTP": "raw HTTP",
        "plain client": "plain client",
        "QdrantVectorStore": "stock LlamaIndex store",
        "CareVectorStore": "CareVectorStore",
    }
    kinds = {
        "dense": "dense, 10,000 points / 100,000 / 1,000,000",
        "BM25": "BM25",
        "hybrid": "hybrid",
        "hybrid, one level": "… one level of prefetch (other hits)",
        "hybrid, rrf": "… rrf",
    }
    yield "| | " + " | ".join(ways.values()) + " |"
    yield "|---|" + "---:|" * len(ways)
    for kind, words in kinds.items():
        cells = [" / ".join(f"{one[kind, way]:.1f}" for one in found if (kind, way) in one) or "–" for way in ways]
        yield f"| {words} | {' | '.join(cells)} |"


def _servers() -> Iterator[str]:
    """Queries per second and CPU time of each embeddings server, by the number of clients."""
    result = _read("serve-comparison.json")
    turns = {(turn["server"], turn["clients"]): turn for turn in result["turns"]}
    clients = list(dict.fromkeys(turn["clients"] for turn in result["turns"]))
    yield "| server | least cosine | " + " | ".join(f"{number} at a time" for number in clients) + " |"
    yield "|---|---:|" + "---:|" * len(clients)
    for name, cosine in result["least_cosine_to_fp32"].items():
        cells = [
            f"{turns[name, number]['queries_per_second']:.0f}/s, {turns[name, number]['cpu_ms_per_query']:.1f} ms"
            for number in clients
        ]
        yield f"| {name} | {cosine:.5f} | " + " | ".join(cells) + " |"


def _detour() -> Iterator[str]:
    """Latency by vector and by text, over both protocols."""
    yield "| clients | HTTP by vector | HTTP by text | gRPC by vector | gRPC by text |"
    yield "|---|---:|---:|---:|---:|"
    results = [_read("serve-latency.json"), _read("serve-latency-grpc.json")]
    for clients in (1, 8, 32):
        cells = [
            f"{result[f'clients_{clients}'][way]['p50_ms']:.1f} / {result[f'clients_{clients}'][way]['p99_ms']:.0f} ms"
            for result in results
            for way in ("vector", "text")
        ]
        yield f"| {clients} | " + " | ".join(cells) + " |"


def _clients() -> Iterator[str]:
    yield "| client | queries | hits | other lists | other texts | largest difference of scores |"
    yield "|---|---:|---:|---:|---:|---:|"
    for client in _read("serve-clients.json")["clients"]:
        yield (
            f"| {client['client']} | {client['queries']} | {client['hits']} | {client['queries_with_other_documents']} "
            f"| {client['texts_that_differ']} | {client['largest_difference_of_scores']:.1e} |"
        )


def _gpu() -> Iterator[str]:
    result = _read("gpu.json")
    stock, best = "sentence-transformers", "sentence-transformers, batches of 128, without cuDNN's attention"
    columns = ["documents", "tokens each", "documents/s", "tokens/s", "share of peak", "× not compiled", "× default"]
    yield f"| Qwen3's shape | {' | '.join([*columns, '× best', 'a query'])} |"
    yield "|---|" + "---:|" * 9
    for name, shape in sorted(result["shapes"].items(), key=lambda item: item[1]["parameters_without_embeddings"]):
        fastest = min(shape["speedup"][stock], shape["speedup"][best])
        yield (
            f"| {name} | {shape['texts']:,} | {shape['tokens'] / shape['texts']:.0f} "
            f"| {shape['documents_per_second']:,.0f} | {shape['tokens_per_second']:,} | {shape['share_of_peak']:.0%} "
            f"| {shape['speedup']['engine, not compiled']:.1f} "
            f"| {shape['speedup'][stock]:.1f} | {fastest:.1f} | {shape['one_query_ms']:.0f} ms |"
        )
    yield ""
    yield (
        f"One {result['gpu']}, torch {result['torch']}, {result['rounds']} rounds, random bfloat16 weights; its own "
        f"large matrix products run at {result['peak_tflops']:.0f} TFLOP/s."
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


def rendered(page: str, blocks: dict[str, str]) -> str:
    """Return a page with the measured parts in their places."""
    for name, block in blocks.items():
        begin, end = f"<!-- {name}: make docs -->\n", f"<!-- /{name} -->\n"
        before, _, rest = page.partition(begin)
        page = before + begin + block + end + rest.partition(end)[2]
    return page


if __name__ == "__main__":
    for path, measured in pages().items():
        text = path.read_text(encoding="utf-8")
        if "--check" not in sys.argv:
            path.write_text(rendered(text, measured), encoding="utf-8")
        elif rendered(text, measured) != text:
            sys.exit(f"{path.name} is out of date: make docs")
