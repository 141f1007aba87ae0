"""A tiny world, and runs that train on it in a second or two a stage."""

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from care_trainer.config import Run, load_run
from care_trainer.data.table import Rows
from datasets import Dataset

from tests.forks import FORKS
from tests.reliability.processes import free_port
from tests.tiny import write_jsonl

DISEASES = ["高血压", "糖尿病", "胃溃疡", "哮喘", "痛风", "甲亢", "贫血", "湿疹", "肺炎", "肾结石", "偏头痛", "鼻炎"]
ASPECTS = {
    "饮食": ("吃什么好", "宜清淡饮食，少盐少油，多吃新鲜蔬菜"),
    "用药": ("吃什么药", "常用药物需要遵医嘱，按时按量服用"),
    "检查": ("做什么检查", "可以做血常规、超声和影像学检查来明确诊断"),
    "症状": ("有什么症状", "早期多无明显不适，以后可以出现乏力和疼痛"),
}

HEAD = """
name = "tiny"
output = "{root}/out"
data_root = "{root}/data"
dim = 32

[query]
pooling = "mean"
max_tokens = 32
scratch = {{ layers = 1, hidden = 32, heads = 2, intermediate = 32, dropout = 0.1 }}

[document]
pooling = "{document_pooling}"
max_tokens = 48
scratch = {{ layers = 2, hidden = 48, heads = 2, intermediate = 48, key_value_heads = 1 }}
{document}

[vocabulary]
data = "pairs"
size = 300

[data.pairs]
files = ["pairs.jsonl"]

[data.texts]
files = ["pairs.jsonl"]
max_rows = 40

[evaluation]
retrieval = "dev"

[export]
probe_texts = 8
"""


def pairs() -> list[dict[str, Any]]:
    """Return 48 pairs with one negative each, in a fixed random order."""
    rows = []
    for disease in DISEASES:
        for aspect, (question, answer) in ASPECTS.items():
            other = next(name for name in ASPECTS if name != aspect)
            rows.append(
                {
                    "query": f"{disease}{question}？",
                    "positive": f"{disease}的{aspect}：{answer}。",
                    "negatives": [f"{disease}的{other}：{ASPECTS[other][1]}。"],
                    "source": "a" if aspect in ("饮食", "用药") else "b",
                    "license": "CC0",
                }
            )
    random.Random(0).shuffle(rows)
    return rows


def write_world(root: Path) -> None:
    rows = pairs()
    write_jsonl(root / "data" / "pairs.jsonl", rows)
    documents = {row["positive"]: f"d{number}" for number, row in enumerate(rows)}
    write_jsonl(root / "data/dev/corpus.jsonl", ({"id": name, "text": text} for text, name in documents.items()))
    write_jsonl(
        root / "data/dev/queries.jsonl", ({"id": f"q{at}", "text": row["query"]} for at, row in enumerate(rows))
    )
    write_jsonl(
        root / "data/dev/qrels.jsonl",
        ({"query_id": f"q{at}", "document_id": documents[row["positive"]], "score": 1} for at, row in enumerate(rows)),
    )


def table_of(columns: dict[str, list[Any]], weights: Iterable[float] = ()) -> Rows:
    """Return rows in memory, as a stage maps them from its file: of one source, drawn once each unless weighted."""
    count = len(next(iter(columns.values())))
    return Rows(
        columns=Dataset.from_dict(columns),
        weights=np.array([*weights] or np.ones(count)),
        characters=np.zeros(count, np.int32),
        sources=(np.zeros(count, np.int32), [""]),
    )


def environment() -> dict[str, str]:
    """Return the environment of a process that imports what this one imports."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def run_ranks(
    program: str, *arguments: str, hosts: Sequence[Mapping[str, str]] = ({"MASTER_ADDR": "127.0.0.1"},)
) -> list["subprocess.CompletedProcess[str]"]:
    """Run a program in processes of one run as torchrun does, two on each host, and return how they ended.

    A host is given by its environment variables.
    """
    port, world = str(free_port()), str(2 * len(hosts))
    shared = {**environment(), "MASTER_PORT": port, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": "2"}
    command = [FORKS.python, "-c", program, *arguments]
    with contextlib.ExitStack() as started:
        processes = [
            started.enter_context(
                subprocess.Popen(command, env={**shared, **host, **own}, stdout=subprocess.PIPE, text=True)
            )
            for number, host in enumerate(hosts)
            for local in range(2)
            for own in [{"RANK": str(2 * number + local), "LOCAL_RANK": str(local)}]
        ]
        printed = [process.communicate()[0] for process in processes]
    return [
        subprocess.CompletedProcess(command, process.returncode, stdout)
        for process, stdout in zip(processes, printed, strict=True)
    ]


def stage(kind: str, **settings: Any) -> dict[str, Any]:
    """Return a stage that takes three steps of eight rows."""
    data = "texts" if kind in ("retromae", "align") else "pairs"
    values = {"data": data, "batch_size": 8, "mini_batch_size": 4, "max_steps": 3, "learning_rate": 1e-3, "warmup": 0.0}
    return {"kind": kind, **values, "evaluate": False, **settings}


def tiny_run(
    root: Path,
    *stages: dict[str, Any],
    overrides: Iterable[str] = (),
    document_pooling: str = "lasttoken",
    document: str = "",
) -> Run:
    """Write the world and a configuration below a folder, and load the run."""
    write_world(root)
    text = HEAD.format(root=root, document_pooling=document_pooling, document=document)
    for values in stages:
        given = {key: value for key, value in values.items() if value is not None}
        text += "\n[[stage]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items())
    path = root / "run.toml"
    path.write_text(text, encoding="utf-8")
    return load_run(path, list(overrides))
