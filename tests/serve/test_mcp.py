"""The Model Context Protocol, asked by the client of its own SDK: over HTTP behind the keys, and over stdio."""

import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from qdrant_client import QdrantClient

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from tests.serve.conftest import aligned
from tests.tiny import TEXTS

SAMPLE = Path(__file__).parents[2] / "examples" / "sample" / "corpus.jsonl"
KEY, OTHER_KEY = "a-key-for-the-corpus", "a-key-for-another-one"


async def session(stack: AsyncExitStack, address: str, key: str = "") -> ClientSession:
    """Return a session with the server, as an assistant opens it."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=30))
    streams = await stack.enter_async_context(streamable_http_client(f"{address}/mcp", http_client=http))
    opened = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
    await opened.initialize()
    return opened


async def test_an_assistant_finds_lists_and_fetches(make_service, listen, filled: QdrantClient) -> None:
    service = make_service(aligned(), mcp=True, over=filled)
    async with AsyncExitStack() as stack:
        asked = await session(stack, listen(service))
        tools = {tool.name: tool for tool in (await asked.list_tools()).tools}
        assert set(tools) == {"search", "list_collections", "fetch_document"}
        assert all(tool.description and tool.annotations.read_only_hint for tool in tools.values())
        listed = (await asked.call_tool("list_collections", {})).structured_content["collections"]
        assert [(each["name"], each["points"]) for each in listed] == [("corpus", len(TEXTS))]
        assert listed[0]["keys"]["dept"] == ["内科", "外科"]
        found = await asked.call_tool("search", {"query": TEXTS[3], "top_k": 2, "conditions": ["n>=3"]})
        hits = found.structured_content["hits"]
        assert (hits[0]["document_id"], len(hits)) == ("d3", 2)
        plain = await asked.call_tool("search", {"query": TEXTS[3]})
        nulls = dict.fromkeys(tools["search"].input_schema["properties"].keys() - {"query"})
        with_nulls = await asked.call_tool("search", {"query": TEXTS[3], **nulls})
        assert with_nulls.structured_content == plain.structured_content
        grouped = await asked.call_tool("search", {"query": TEXTS[3], "group_by": "dept", "group_size": 1})
        assert [hit["group"] for hit in grouped.structured_content["hits"]] == ["内科", "外科"]
        above = await asked.call_tool("search", {"query": TEXTS[3], "score_threshold": hits[0]["score"] - 1e-6})
        assert [hit["document_id"] for hit in above.structured_content["hits"]] == ["d3"]
        none = await asked.call_tool("search", {"query": TEXTS[3], "conditions": ["department=内科"]})
        assert "no point of 'corpus' has 'department'" in none.structured_content["note"]
        nothing = await asked.call_tool("search", {"query": TEXTS[3], "conditions": ["a.b!=内科"]})
        assert "'a.b!=内科' rules nothing out" in nothing.structured_content["note"]
        traditional = await asked.call_tool("search", {"query": "高血壓患者飲食上要注意什麼"})
        assert "convert the question" in traditional.structured_content["note"]
        whole = await asked.call_tool("fetch_document", {"document_id": "d3"})
        assert whole.structured_content["chunks"] == [TEXTS[3]]
        for tool, arguments, reason in (
            ("search", {"query": " "}, "blank"),
            ("search", {"query": "发烧", "collection": "another"}, "not served here; served: corpus"),
            ("search", {"query": "发烧", "conditions": ["nonsense"]}, "nonsense"),
            ("search", {"query": "发烧", "filter": "dept=内科"}, "filter is not a field of this request"),
            ("fetch_document", {"document_id": "d3", "limit": 1}, "limit is not a field of this request"),
            ("list_collections", {"prefix": "a"}, "prefix is not a field of this request"),
            ("fetch_document", {"document_id": "nobody"}, "no document 'nobody'"),
        ):
            refused = await asked.call_tool(tool, arguments)
            assert refused.is_error
            assert reason in refused.content[0].text


async def test_a_key_reaches_its_collections(
    make_service,
    listen,
    filled: QdrantClient,
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} search:corpus\n{OTHER_KEY} search:another\n")
    service = make_service(aligned(), mcp=True, keys_file=keys, collections=("corpus",), over=filled)
    address = listen(service)
    async with AsyncExitStack() as stack:
        asked = await session(stack, address, OTHER_KEY)
        assert (await asked.call_tool("list_collections", {})).structured_content["collections"] == []
        refused = await asked.call_tool("search", {"query": TEXTS[3]})
        assert "no collection is served here" in refused.content[0].text
    async with AsyncExitStack() as stack:
        asked = await session(stack, address, KEY)
        assert not (await asked.call_tool("search", {"query": TEXTS[3]})).is_error
    async with httpx2.AsyncClient() as http:
        assert (await http.post(f"{address}/mcp", json={})).status_code == 401
        plain = await http.post(f"{address}/mcp", content="x", headers={"authorization": f"Bearer {KEY}"})
    assert plain.status_code == 415


async def test_no_stream_stays_open_that_would_keep_a_worker_from_ending(make_service, listen) -> None:
    """Protocols since 2026-07-28 have subscriptions, whose answer ends when the client leaves."""
    version = "2026-07-28"
    protocol = "io.modelcontextprotocol"
    meta = {f"{protocol}/protocolVersion": version, f"{protocol}/clientCapabilities": {}}
    address = listen(make_service(mcp=True))
    async with httpx2.AsyncClient(timeout=20) as http:

        async def ask(method: str, **params: object) -> httpx2.Response:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
            accepts = "application/json, text/event-stream"
            headers = {"mcp-protocol-version": version, "mcp-method": method, "accept": accepts}
            return await http.post(f"{address}/mcp", json=body, headers=headers)

        offered = (await ask("server/discover")).json()["result"]["capabilities"]
        assert not any(value for capability in offered.values() for value in capability.values()), offered
        refused = await ask("subscriptions/listen", notifications={"toolsListChanged": True})
        assert "error" in refused.json()


async def test_a_tool_that_no_request_called_answers_nothing(make_service, filled: QdrantClient) -> None:
    """Such as one whose SDK runs it in another context: who asks, and with which key, is then unknown."""
    mcp = make_service(aligned(), mcp=True, over=filled).mcp
    for tool, arguments in (
        ("list_collections", {}),
        ("search", {"query": TEXTS[3]}),
        ("fetch_document", {"document_id": "d3"}),
    ):
        with pytest.raises(Exception, match=f"Error executing tool {tool}"):
            await mcp.server.call_tool(tool, arguments)


async def test_a_good_match_is_told_from_a_poor_one(make_service, listen, client: QdrantClient) -> None:
    model = CareModel.load()
    ingest(SAMPLE, model, client, "sample", settings=IngestSettings(sparse=True))
    service = make_service(model, mcp=True, over=client)
    address = listen(service)
    async with httpx2.AsyncClient(timeout=120) as http:  # a busy machine may take longer than a search waits
        for mode in ("hybrid", "dense"):
            assert (await http.post(f"{address}/good-match", json={"mode": mode})).json()["good_match_score"] > 0
    async with AsyncExitStack() as stack:
        asked = await session(stack, address)
        for query, good in (
            ("心梗发作的时候胸口疼是什么样的", True),
            ("高血压病人能吃咸菜吗", True),
            ("how do I renew my passport", False),
            ("my dad has crushing chest pain, what should we do", True),
            ("wie verlängere ich meinen Reisepass am besten", False),
            ("二手房过户需要交哪些税", False),
        ):
            is_foreign = query.startswith("wie")  # and its vector may lie close to all others
            for mode in ("hybrid", "dense") if good or is_foreign else ("hybrid",):
                answer = await asked.call_tool("search", {"query": query, "mode": mode})
                assert (answer.structured_content["good_match"], query, mode) == (good, query, mode)
                assert ("does not read" in (answer.structured_content["note"] or "")) is is_foreign
        answer = await asked.call_tool("search", {"query": "发烧", "mode": "sparse"})
        assert answer.structured_content["good_match"] is None


async def test_an_assistant_starts_the_command_and_speaks_over_stdio(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(TEXTS)))
    client = QdrantClient(path=str(tmp_path / "qdrant"))
    ingest(corpus, CareModel.load(), client, "corpus")
    client.close()
    command = StdioServerParameters(
        command=sys.executable,
        args=["-c", "from care_qdrant.cli import main; main()", "serve", "--mcp=stdio"],
        cwd=tmp_path,
        env=dict(os.environ),
    )
    async with stdio_client(command) as (read, write), ClientSession(read, write) as asked:
        await asked.initialize()
        found = await asked.call_tool("search", {"query": TEXTS[2], "top_k": 1})
        assert found.structured_content["hits"][0]["document_id"] == "d2"


async def test_it_is_not_there_unless_asked_for(make_service, connect) -> None:
    assert (await connect(make_service()).post("/mcp", json={})).status_code == 404
