"""Documents and tokens a second on a GPU: the engine beside sentence-transformers, as shares of its matrix products.

The document encoders have the shapes of Qwen3 and random bfloat16 weights, made on the GPU; the tokenizer is one of
Qwen3's kind (pieces of bytes), trained on the texts. sentence-transformers runs as it does by default, and as well as
it can: with larger batches and without cuDNN's attention, which plans anew for every shape of a batch. Every way
encodes all texts from strings to vectors, in turns; the engine with compiled layers, as in a long run, and without, as
in its beginning. One query is encoded by the same models, since that is what a deployment pays whose queries go
through the LLM.
"""

import gzip
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from care_qdrant.encoders.local.attention import without_cudnn_attention
from care_qdrant.encoders.local.torch import TorchEncoder
from care_qdrant.types import Vectors

from .engines import MAX_TOKENS, encode, peak_rate
from .measured import output_option, save_measured

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerFast

HEAD_DIM = 128
VOCABULARY = 151_936
QUESTION = "心梗发作的时候家里人该怎么办"
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Regular expression of the parts of a text in which Qwen's tokenizers look for pieces."""


@dataclass(frozen=True)
class Shape:
    """The shape of a Qwen3 and the number of texts that it encodes here."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    intermediate: int
    texts: int


SHAPES = {
    "0.6B": Shape(1024, 28, 16, 8, 3072, 4_000),
    "4B": Shape(2560, 36, 32, 8, 9728, 1_500),
    "8B": Shape(4096, 36, 32, 8, 12288, 800),
    "tiny": Shape(128, 2, 2, 1, 256, 100),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("texts", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--shape", "shapes", type=click.Choice(list(SHAPES)), multiple=True, help="Repeatable. [default: not tiny]"
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Turns of each way.")
@click.option("--device", default="cuda", show_default=True, help="As torch names it.")
@output_option
def main(texts: Path, shapes: tuple[str, ...], rounds: int, device: str, output: Path) -> None:
    """Measure encoders of Qwen3's shapes on a GPU; TEXTS are JSON lines with a text, or the positive of a pair.

    \b
    Example:
      python -m benchmarks.perf.gpu corpus.jsonl --output benchmarks/results/gpu.json
    """
    import torch

    found = list(_texts(texts))
    tokenizer = train_tokenizer(found)
    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
        "torch": torch.__version__,
        "rounds": rounds,
        "peak_tflops": round(peak_rate(device) / 1e12, 1),
        "shapes": {},
    }
    for name in shapes or [name for name in SHAPES if name != "tiny"]:
        shape = SHAPES[name]
        with tempfile.TemporaryDirectory() as scratch:
            model = build(shape, tokenizer, device, Path(scratch))
        report["shapes"][name] = measure(model, found[: shape.texts], rounds, 1e12 * report["peak_tflops"])
        click.echo(json.dumps({name: report["shapes"][name]}), err=True)
        save_measured(output, report)  # after each shape: time on a GPU is short
        del model
        if device.startswith("cuda"):
            torch.cuda.empty_cache()


def _texts(file: Path) -> Iterator[str]:
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield row["text"] if "text" in row else row["positive"]


def train_tokenizer(texts: Sequence[str], size: int = 30_000) -> "PreTrainedTokenizerFast":
    """Return a tokenizer that works as Qwen3's does: pieces of bytes, found in words of letters; an end at the end."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    end, pad = "<|endoftext|>", "<|pad|>"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[end, pad], initial_alphabet=alphabet, max_token_length=24, show_progress=False
    )
    tokenizer.train_from_iterator(texts[:3_000], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=end, model_max_length=MAX_TOKENS, padding_side="right"
    )


def build(shape: Shape, tokenizer: "PreTrainedTokenizerFast", device: str, scratch: Path) -> "SentenceTransformer":
    """Return a random model of a shape: loaded with one narrow layer, whose place the real one takes on the device."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import Qwen3Config, Qwen3Model

    def config_of(
        vocabulary: int, hidden: int, layers: int, heads: int, key_value_heads: int, wide: int
    ) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=wide,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=key_value_heads,
            head_dim=HEAD_DIM,
            max_position_embeddings=40_960,
            pad_token_id=1,
            eos_token_id=0,
            bos_token_id=None,
            use_cache=False,
        )

    Qwen3Model(config_of(len(tokenizer), 64, 1, 1, 1, 64)).save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    transformer = Transformer(str(scratch), max_seq_length=MAX_TOKENS, model_kwargs={"dtype": torch.bfloat16})
    wide = (shape.hidden, shape.layers, shape.heads, shape.key_value_heads, shape.intermediate)
    config = config_of(VOCABULARY, *wide)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            transformer.model = Qwen3Model(config).eval()
    finally:
        torch.set_default_dtype(before)
    return SentenceTransformer(
        modules=[transformer, Pooling(shape.hidden, "lasttoken"), Normalize()], device=device
    ).eval()


def measure(model: "SentenceTransformer", texts: list[str], rounds: int, peak: float) -> dict[str, Any]:
    """Return seconds of each way in each round, and what the engine's are in documents, tokens and operations."""
    encoder, uncompiled = TorchEncoder(model, "document"), TorchEncoder(model, "document")
    start = time.perf_counter()
    if encoder._packed is not None:
        encoder._packed.compile(encoder._sent)
    compiling = time.perf_counter() - start
    lengths = [min(length, encoder.max_tokens) for length in encoder.count_tokens(texts)]
    weights = sum(weight.numel() for name, weight in model[0].model.named_parameters() if "embed" not in name)

    def stock(texts: list[str], **options: Any) -> Vectors:
        return np.asarray(model.encode(texts, normalize_embeddings=True, show_progress_bar=False, **options))

    def stock_at_its_best(texts: list[str]) -> Vectors:
        with without_cudnn_attention():
            return stock(texts, batch_size=128)

    ways: dict[str, Callable[[list[str]], Vectors]] = {
        "engine": lambda texts: encode(encoder, texts),
        "engine, not compiled": lambda texts: encode(uncompiled, texts),
        "sentence-transformers": stock,
        "sentence-transformers, batches of 128, without cuDNN's attention": stock_at_its_best,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    vectors: dict[str, Vectors] = {}
    for way in ways.values():
        way(texts[-32:])
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            vectors[name] = way(texts)
            seconds[name].append(round(time.perf_counter() - start, 3))
    own, tokens = median(seconds["engine"]), sum(lengths)
    asked = []
    for _ in range(30):
        start = time.perf_counter()
        encoder.encode([QUESTION])
        asked.append(1_000 * (time.perf_counter() - start))
    return {
        "parameters_without_embeddings": weights,
        "texts": len(texts),
        "tokens": tokens,
        "engine": encoder.report(),
        "without_padding": encoder._packed is not None,
        "compiled": encoder._packed is not None and encoder._packed.is_compiled,
        "compile_seconds": round(compiling, 1),
        "seconds": seconds,
        "documents_per_second": round(len(texts) / own, 1),
        "tokens_per_second": round(tokens / own),
        "share_of_peak": round(2 * weights * tokens / own / peak, 3),
        "speedup": {name: round(median(seconds[name]) / own, 2) for name in ways},
        "least_cosine": {
            name: round(float((found * vectors["engine"]).sum(axis=1).min()), 4) for name, found in vectors.items()
        },
        "one_query_ms": round(median(asked), 2),
    }


if __name__ == "__main__":
    main()
