"""Texts that the included pair learns from: pairs of open sources, docstrings, WordNet.

The fine-tuning of the document encoder reads pairs. The table of the query encoder reads more, all without labels: it
has to give the encoder's vector for questions, sentences, spans of several sentences, joined sentences and documents.
"""

import ast
import gzip
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]

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
NOT_PUBLISHED = ("research-only", "unstated")
"""Licenses of rows from which no weights are published."""
CONSULTATIONS = ("toyhom_im", "cmdd", "medicalgpt_1k", "cmedir", "haimol_tcm")
COUNSELLING = ("smilechat", "cpsycoun")
BOOKS = ("tcm_books",)
QUESTION_LENGTHS, QUESTIONS_OF_A_SOURCE = (3, 130), 15_000
"""Lengths of questions in characters, and the largest number of a source: one has half of all."""
DOCUMENTS = (13_000, 5_000)
"""Number of Chinese and of English pairs whose answers the table reads."""
SENTENCES = ((CONSULTATIONS, 60_000), (COUNSELLING, 20_000), (BOOKS, 8_000))
SENTENCE_LENGTHS = (6, 60)
ENGLISH_SENTENCES, ENGLISH_SENTENCE_LENGTHS, LETTERS = 25_000, (12, 90), 0.85
"""Sentences of docstrings, and the share of letters and blanks from which one is prose rather than code."""
GLOSSES = {"definitions": 30_000, "examples": 20_000, "words": 10_000}
"""Texts of WordNet 3.0: docstrings do not say what people say of their bodies, families and days."""
SPANS = ((16_000, (30, 120)), (4_000, (70, 260)))
"""Number and lengths of Chinese and of English spans of several sentences."""
JOINED = (12_000, 8_000)
"""Number of two Chinese and of two English sentences that are joined: users ask about two things at once."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts that the table learns from, by the role in which the encoder reads them."""

    questions: list[str]
    documents: list[str]


def read_rows(path: Path) -> Rows:
    """Return the rows of a JSONL file, plain or compressed."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in content.splitlines()]


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a JSONL file, which is there once it is complete."""
    building = path.with_suffix(".partial")
    building.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    building.replace(path)


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


def wordnet_texts(folder: Path) -> dict[str, list[str]]:
    """Return definitions, example sentences, and expressions of several words, from the files of WordNet 3.0."""
    texts: dict[str, list[str]] = {"definitions": [], "examples": [], "words": []}
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text("utf-8").splitlines():
            if line.startswith("  "):  # the license
                continue
            head, _, gloss = line.partition(" | ")
            fields = head.split()
            words = [fields[4 + 2 * place].replace("_", " ").split("(")[0] for place in range(int(fields[3], 16))]
            texts["examples"] += re.findall(r'"([^"]{12,90})"', gloss)
            definition = re.sub(r'\s*[;,]?\s*"[^"]*"', "", gloss).strip(" ;")
            if 12 <= len(definition) <= 100:
                texts["definitions"].append(definition)
            if len(definition) <= 60:
                texts["definitions"].append(f"{words[0]}: {definition}")
            texts["words"] += [word for word in words if " " in word and word.islower()]
    return texts


def pairs_of(data: Path, work: Path, seed: int = 1) -> tuple[Rows, Rows]:
    """Return consultations and English pairs, each in a random order."""
    chinese = [pair for pair in read_rows(data / "train/pairs_open.jsonl.gz") if pair["source"] in CONSULTATIONS]
    english = read_rows(work / "english.jsonl")
    for rows in (chinese, english):
        random.Random(seed).shuffle(rows)
    return chinese, english


def texts_of(data: Path, wordnet: Path, work: Path, seed: int = 1) -> Texts:
    """Return what the table learns from, in Chinese and English, of sources whose weights may be published."""
    draw = random.Random(seed)
    pairs = read_rows(data / "train/pairs_open.jsonl.gz")
    chinese, english = pairs_of(data, work, seed)
    answered = [*chinese[: DOCUMENTS[0]], *english[: DOCUMENTS[1]]]
    sentences = [
        _drawn((part for text in _texts(pairs, sources) for part in _sentences(text)), count, draw)
        for sources, count in SENTENCES
    ]
    prose = _drawn((part for pair in english for part in _english_sentences(pair["positive"])), ENGLISH_SENTENCES, draw)
    texts = _questions(data, pairs, english, draw)
    for part in sentences:
        texts += part
    texts += prose
    glosses = wordnet_texts(wordnet)
    for kind, count in GLOSSES.items():
        texts += _drawn(glosses[kind], count, draw)
    for (count, lengths), rows in zip(SPANS, (_texts(pairs, CONSULTATIONS), _texts(english)), strict=True):
        texts += _drawn((span for text in rows if (span := _span(text, lengths, draw))), count, draw)
    for count, parts, marks in zip(JOINED, (sentences[0], prose), ("，。 ？", (", ", ". ", " and ")), strict=True):
        texts += [draw.choice(parts) + draw.choice(marks) + draw.choice(parts) for _ in range(count)]
    return Texts(list(dict.fromkeys(texts)), list(dict.fromkeys(pair["positive"] for pair in answered)))


def _questions(data: Path, pairs: Rows, english: Rows, draw: random.Random) -> list[str]:
    asked = [
        (row["source"], row["text"])
        for row in read_rows(data / "train/queries.jsonl.gz")
        if row["licence"] not in NOT_PUBLISHED
    ]
    asked += [(pair["source"], pair["query"]) for pair in [*pairs, *english] if pair["source"] not in BOOKS]
    least, most = QUESTION_LENGTHS
    by_source: dict[str, set[str]] = {}
    for source, text in asked:
        if least <= len(text.strip()) <= most:
            by_source.setdefault(source, set()).add(text.strip())
    return [text for texts in by_source.values() for text in _drawn(texts, QUESTIONS_OF_A_SOURCE, draw)]


def _drawn(texts: Iterable[str], count: int, draw: random.Random) -> list[str]:
    distinct = sorted(set(texts))
    draw.shuffle(distinct)
    return distinct[:count]


def _texts(rows: Sequence[dict[str, Any]], sources: Sequence[str] | None = None) -> list[str]:
    return [row[key] for row in rows if sources is None or row["source"] in sources for key in ("query", "positive")]


def _sentences(text: str) -> Iterator[str]:
    least, most = SENTENCE_LENGTHS
    for sentence in re.split(r"[。！？；，!?;]|[.,] ", text):
        if least <= len(sentence.strip()) <= most:
            yield sentence.strip()


def _english_sentences(text: str) -> Iterator[str]:
    least, most = ENGLISH_SENTENCE_LENGTHS
    for sentence in re.split(r"[.;:] ", text):
        letters = sum(character.isalpha() or character == " " for character in sentence)
        if least <= len(sentence) <= most and letters > LETTERS * len(sentence):
            yield sentence


def _span(text: str, lengths: tuple[int, int], draw: random.Random) -> str:
    """Return sentences from a random one on, as many as fit; empty if they are too short."""
    least, most = lengths
    parts = re.findall(r".+?(?:[。！？；!?;]|\. |$)", text)
    span = ""
    for part in parts[draw.randrange(len(parts)) :] if parts else ():
        if len(span) + len(part) > most:
            break
        span += part
    return span.strip() if len(span.strip()) >= least else ""
