"""The blocks of docs/how-to/llamaindex.md run in their order, as its first lines say."""

import re
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, Settings
from llama_index.core.llms import MockLLM

from care_qdrant import CareModel, IngestSettings, ingest, open_client

ROOT = Path(__file__).parents[2]


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_client(path=tmp_path / "qdrant") as client:
        corpus = ROOT / "examples" / "sample" / "corpus.jsonl"
        ingest(corpus, CareModel.load(), client, "corpus", settings=IngestSettings(sparse=True))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Settings, "_llm", MockLLM())
    guide = (ROOT / "docs/how-to/llamaindex.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```py\n(.*?)```", guide, re.DOTALL):
        exec(block, names)
    try:
        assert len(names["nodes"]) == 3 and len(names["vector"]) == 384
        groups = [node.metadata["department"] for node in names["grouped"]]
        assert len(set(groups)) == 3 and all(groups.count(each) <= 2 for each in groups)
        assert names["engine"].query("吃二甲双胍拉肚子").source_nodes
        before = names["store"].client.count("corpus").count
        names["pipeline"].run(documents=[Document(id_="new", text="猫爪草外用会不会过敏。")])
        assert names["store"].client.count("corpus").count == before + 1
        names["other"].run(documents=[Document(id_="other", text="另一种切法。")])
        assert names["store"].client.count("corpus").count == before + 2
    finally:
        names["store"].client.close()
