"""An HTTP service in front of a collection, and 400 questions that come at the same time.

Every request is one coroutine. The queries that wait while the encoder runs become its next batch; none waits for a
batch to fill, and the event loop continues. The built-in encoder is so small that HTTP, LlamaIndex and the embedded
search take most of the time here; an encoder of BERT's size is where the batches pay.

    pip install -e '.[llama-index]' aiohttp
    python examples/04_async_service.py [MODEL]          a short demonstration, offline
    curl 'http://127.0.0.1:PORT/search?q=耳鸣吃什么药'     what a client sends
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from aiohttp import web
from llama_index.core import VectorStoreIndex
from llama_index.core.retrievers import BaseRetriever
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore

from care_qdrant import CareModel, ingest, open_client

SAMPLE = Path(__file__).parent / "sample"
REQUESTS = 400


def application(retriever: BaseRetriever) -> web.Application:
    async def search(request: web.Request) -> web.Response:
        found = await retriever.aretrieve(request.query["q"])
        hits = [{"id": one.node.ref_doc_id, "score": one.score, "text": one.node.get_content()} for one in found]
        return web.json_response(hits, dumps=lambda value: json.dumps(value, ensure_ascii=False))

    app = web.Application()
    app.router.add_get("/search", search)
    return app


async def ask(session: aiohttp.ClientSession, url: str, question: str) -> tuple[float, list[dict[str, object]]]:
    start = time.perf_counter()
    async with session.get(url, params={"q": question}) as response:
        hits = await response.json()
    return (time.perf_counter() - start) * 1_000, hits


async def demonstrate(retriever: BaseRetriever, questions: list[str]) -> None:
    runner = web.AppRunner(application(retriever))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    url = f"http://{host}:{port}/search"
    async with aiohttp.ClientSession() as session:
        _, hits = await ask(session, url, questions[0])
        print(f"{questions[0]}  →  {hits[0]['id']}: {str(hits[0]['text'])[:40]}…")

        alone = [(await ask(session, url, f"{question}？"))[0] for question in questions[:50]]
        rate, median = 1_000 / statistics.mean(alone), statistics.median(alone)
        print(f"one after the other: {rate:.0f} a second, median {median:.1f} ms")

        start = time.perf_counter()
        crowd = [f"{questions[number % len(questions)]}（{number}）" for number in range(REQUESTS)]
        answers = await asyncio.gather(*(ask(session, url, question) for question in crowd))
        seconds = time.perf_counter() - start
        times = statistics.quantiles([latency for latency, _ in answers], n=100)
        print(f"{REQUESTS} at the same time: {REQUESTS / seconds:.0f} a second, all answered after {seconds:.1f} s")
        print(f"each of them waited: median {times[49]:.0f} ms, 99 of 100 at most {times[98]:.0f} ms")
    await runner.cleanup()


def main(model: str = "built-in") -> None:
    questions = [json.loads(line)["text"] for line in (SAMPLE / "queries.jsonl").read_text("utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as folder, open_client(path=Path(folder)) as client:
        ingest(SAMPLE / "corpus.jsonl", CareModel.load(model), client, "sample")
        embedding = CareEmbedding(model=model, documents=False)
        store = CareVectorStore("sample", client, embedding=embedding)
        retriever = VectorStoreIndex.from_vector_store(store, embed_model=embedding).as_retriever(similarity_top_k=3)
        asyncio.run(demonstrate(retriever, questions))


if __name__ == "__main__":
    main(*sys.argv[1:])
