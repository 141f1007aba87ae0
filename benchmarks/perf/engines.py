"""Documents a second of the torch engine, of other libraries and of embeddings servers, with the same weights.

The document encoder is a Qwen3 of a small shape with random weights, or a folder; the texts have the lengths of real
passages. Every way encodes all of them in one call, in turns; servers are asked as `--endpoint` asks them. CPU
seconds are there beside the time, since other work on the machine moves the time. Shapes of LLMs on a GPU are measured
by `benchmarks/perf/gpu.py`.
"""

import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click
import numpy as np
from tokenizers import Tokenizer

from care_qdrant.encoders.ahead import run_ahead
from care_qdrant.encoders.batching import token_batches
from care_qdrant.encoders.engine import Engine, Sent
from care_qdrant.encoders.local.torch import TorchEncoder, load_sentence_transformer
from care_qdrant.encoders.references import make_references
from care_qdrant.encoders.remote.server import ServerEncoder
from care_qdrant.encoders.side import Side
from care_qdrant.model.folder import write_for_servers
from care_qdrant.types import Vectors
from tests import tiny

from .measured import output_option, save_measured, shown
from .serve_comparison import Server, running

MAX_TOKENS = 512
MEAN_TOKENS = 150


@dataclass(frozen=True, slots=True)
class Result:
    """One way of encoding all documents."""

    name: str
    seconds: list[float]
    """Wall-clock seconds of each round."""
    cpu_seconds: list[float]
    """CPU seconds of each round, in this process and in the server that was asked."""
    documents_per_second: float
    """Documents divided by the median time."""
    speedup: float
    """Speedup of the engine over this way: ratio of the median times."""
    cpu_speedup: float
    """Speedup of the engine over this way in CPU seconds."""
    largest_difference: float
    """Largest difference of any number of its vectors from those of the engine."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to encode, and the CPU seconds that another process has used for it."""

    encode: Callable[[list[str]], Vectors]
    elsewhere: Callable[[], float] = float


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", type=click.Path(path_type=Path, exists=True), help="sentence-transformers folder.")
@click.option("--hidden", type=click.IntRange(64), default=384, show_default=True, help="Width of the random model.")
@click.option("--layers", type=click.IntRange(1), default=6, show_default=True, help="Its layers.")
@click.option("--documents", type=click.IntRange(1), default=1_000, show_default=True, help="Texts.")
@click.option(
    "--server",
    "servers",
    type=(str, str, click.Choice(["tokens", "text"])),
    multiple=True,
    help="Name of an embeddings server, its command, and what it takes; {model} stands for the folder, {port} for its "
    "port. Repeatable.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Turns of each way.")
@click.option("--device", default="cpu", show_default=True, help="As torch names it.")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"]), default="auto", help="Of the weights.")
@click.option("--seed", default=0, show_default=True, help="Of lengths and texts.")
@output_option
def main(
    model: Path | None,
    hidden: int,
    layers: int,
    documents: int,
    servers: tuple[tuple[str, str, Sent], ...],
    rounds: int,
    device: str,
    dtype: str,
    seed: int,
    output: Path,
) -> None:
    """Compare ways of encoding documents.

    \b
    Example:
      python -m benchmarks.perf.engines --output benchmarks/results/engines-cpu.json
      python -m benchmarks.perf.engines --output engines.json --server infinity \\
        "infinity_emb v2 --model-id {model} --engine torch --port {port} --url-prefix /v1" text
      python -m benchmarks.perf.engines --model ./pair/document --device cuda --output gpu.json
    """
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise click.UsageError("there is no GPU here: this part of the benchmark is ready, and was not run")
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = model or write_model(Path(scratch) / "qwen3", hidden, layers)
        encoder = TorchEncoder(load_sentence_transformer(folder, device, dtype), "document")  # type: ignore[arg-type]
        texts = make_texts(encoder, documents, seed)
        lengths = [min(length, encoder.max_tokens) for length in encoder.count_tokens(texts)]
        ways: dict[str, Way] = {
            "engine": Way(lambda texts: encode(encoder, texts)),
            "sentence-transformers": Way(_stock(encoder)),
            "LlamaIndex IngestionPipeline": Way(_pipeline(folder, encoder)),
        }
        for name, command, sent in servers:
            server = stack.enter_context(running(name, command.replace("{model}", str(folder)), "", None))
            ways[name] = Way(_served(server, folder, encoder, sent), server.cpu_seconds)
        timings = _measure(ways, texts, rounds)
    results = _compare(timings, documents)
    report = {
        "documents": documents,
        "servers": {name: re.sub(r"/\S*/", "", command) for name, command, _ in servers},
        "tokens": sum(lengths),
        "rounds": rounds,
        "seed": seed,
        "threads": torch.get_num_threads(),
        "engine": encoder.report(),
        "ways": [asdict(shown(result)) for result in results],
    }
    save_measured(output, report)


def write_model(folder: Path, hidden: int, layers: int) -> Path:
    """Save a random Qwen3 that reads 512 tokens."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import Qwen3Config, Qwen3Model

    base, tokenizer = folder.with_name("base"), tiny.qwen_tokenizer(eos=True)
    tokenizer.model_max_length = MAX_TOKENS
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 192),
        head_dim=64,
        intermediate_size=3 * hidden,
        max_position_embeddings=MAX_TOKENS,
        pad_token_id=0,
        eos_token_id=2,
        bos_token_id=None,
    )
    Qwen3Model(config).save_pretrained(base)
    tokenizer.save_pretrained(base)
    transformer = Transformer(str(base), max_seq_length=MAX_TOKENS)
    parts = [transformer, Pooling(hidden, "lasttoken"), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save_pretrained(str(folder), create_model_card=False)
    write_for_servers(folder)
    return folder


def make_texts(encoder: TorchEncoder, count: int, seed: int) -> list[str]:
    """Return texts whose lengths are spread as those of passages: log-normal, of 150 tokens on average.

    None begins or ends with a space: sentence-transformers before 5, as in infinity, takes these off.
    """
    rng, draw = np.random.default_rng(seed), random.Random(seed)
    wanted = np.clip(rng.lognormal(np.log(MEAN_TOKENS) - 0.32, 0.8, count), 8, MAX_TOKENS)
    letters = "".join(tiny.TEXTS)
    sample = "".join(draw.choice(letters) for _ in range(2_000))
    per_letter = encoder.count_tokens([sample])[0] / len(sample)
    texts = ("".join(draw.choice(letters) for _ in range(max(4, int(n / per_letter)))) for n in wanted)
    return [text.strip() or "咳" for text in texts]


def encode(encoder: TorchEncoder, texts: Sequence[str]) -> Vectors:
    """Encode as an ingestion does: batches of 16,384 padded tokens, as many at a time as the engine uses."""
    lengths = [min(length, encoder.max_tokens) for length in encoder.count_tokens(texts)]
    vectors = np.empty((len(texts), encoder.dim), dtype=np.float32)
    batches = token_batches(lengths, 16_384, alike=encoder.alike)
    run: Callable[[list[int]], Vectors] = lambda batch: encoder.encode([texts[i] for i in batch])  # noqa: E731
    with closing(run_ahead(batches, run, lambda: encoder.calls)) as done:
        for batch, rows in done:
            vectors[batch] = rows
    return vectors


def _stock(encoder: TorchEncoder) -> Callable[[list[str]], Vectors]:
    def run(texts: list[str]) -> Vectors:
        vectors = encoder._model.encode(texts, normalize_embeddings=True, show_progress_bar=False)  # the same weights
        return np.asarray(vectors, dtype=np.float32)

    return run


def _pipeline(folder: Path, encoder: TorchEncoder) -> Callable[[list[str]], Vectors]:
    from llama_index.core.ingestion import IngestionPipeline
    from llama_index.core.schema import TextNode
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    dtype = {"dtype": encoder.report()["dtype"]}
    embedding = HuggingFaceEmbedding(model_name=str(folder), device=encoder.device, normalize=True, model_kwargs=dtype)

    def run(texts: list[str]) -> Vectors:
        pipeline = IngestionPipeline(transformations=[embedding], disable_cache=True)
        nodes = pipeline.run(nodes=[TextNode(text=text) for text in texts])
        return np.asarray([node.embedding for node in nodes], dtype=np.float32)

    return run


def _served(server: Server, folder: Path, encoder: TorchEncoder, sent: Sent) -> Callable[[list[str]], Vectors]:
    engine = Engine("server", endpoints=(f"http://127.0.0.1:{server.port}/v1",), sent=sent, request_tokens=4_096)
    tokenizer, side = Tokenizer.from_file(str(folder / "tokenizer.json")), Side("lasttoken", encoder.max_tokens)
    references = make_references(encoder.encode)
    return ServerEncoder(engine, server.model, tokenizer, side, references, dim=encoder.dim).encode


def _measure(
    ways: dict[str, Way], texts: list[str], rounds: int
) -> dict[str, tuple[list[float], list[float], Vectors]]:
    found: dict[str, tuple[list[float], list[float], Vectors]] = {}
    for way in ways.values():
        way.encode(texts[:64])  # not measured: the first call builds kernels
    for _ in range(rounds):
        for name, way in ways.items():
            start, cpu = time.perf_counter(), time.process_time() + way.elsewhere()
            vectors = way.encode(texts)
            seconds, used, _ = found.setdefault(name, ([], [], vectors))
            seconds.append(round(time.perf_counter() - start, 3))
            used.append(round(time.process_time() + way.elsewhere() - cpu, 3))
    return found


def _compare(timings: dict[str, tuple[list[float], list[float], Vectors]], documents: int) -> list[Result]:
    own, own_cpu, vectors = timings["engine"]
    return [
        Result(
            name,
            seconds,
            cpu,
            documents_per_second=round(documents / median(seconds), 1),
            speedup=round(median(seconds) / median(own), 2),
            cpu_speedup=round(median(cpu) / median(own_cpu), 2),
            largest_difference=float(np.abs(found - vectors).max()),
        )
        for name, (seconds, cpu, found) in timings.items()
    ]


def peak_rate(device: str) -> float:
    """Return the operations a second of large bfloat16 matrix products on a device."""
    import torch

    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    size, few, many = (8_192, 3, 30) if device.startswith("cuda") else (512, 1, 3)
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    rate = 0.0
    for repeats in (few, many):
        wait()
        start = time.perf_counter()
        for _ in range(repeats):
            a @ a
        wait()
        rate = 2 * size**3 * repeats / (time.perf_counter() - start)
    return rate


if __name__ == "__main__":
    main()
