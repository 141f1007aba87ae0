"""BM25 by a text index of Qdrant 1.20 (`TextQuery`) against our sparse vector, on the development set.

A text index needs no vector on any point. Its `multilingual` tokenizer cuts Chinese into words by jieba without hidden
Markov model, and drops words without a letter; the client's local mode knows the `word` tokenizer alone, which cuts at
what is neither letter nor digit. Words that jieba has cut, with spaces between them, are the same to both, so local
mode says whether the scores here are Qdrant's. No server of 1.20 was at hand.

    pip install jieba
    python -m benchmarks.experiments.text_index DATA --output RESULT.json
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import click
import numpy as np
from care_benchmarks.statistics import compare_with_base
from qdrant_client import QdrantClient, models
from qdrant_client.local.payload_filters import unindexed_text_tokens

from benchmarks.experiments.bm25_constants import Constants, Searched, scored, scores, split_of
from benchmarks.experiments.token_tables import Counted, Scores, built_in_tokenizer, read_task
from benchmarks.perf.measured import output_option, save_measured
from care_qdrant.encoders.terms import bm25
from care_qdrant.model.care_model import CareModel

Tokenizer = Callable[[str], list[str]]
TEXT_INDEX = Constants(1.2, 0.75, None)
"""Defaults of the text index; k1 and b belong to the query, so others cost nothing."""
CHECKED = 5
"""Questions that local mode answers as well; it cuts all documents anew for each."""


def multilingual(text: str) -> list[str]:
    """Return the words of a text as the server's tokenizer cuts them."""
    import jieba  # type: ignore[import-not-found]  # no part of any extra: this study alone needs it

    words = jieba.cut(unicodedata.normalize("NFKC", text).lower(), HMM=False)
    return [word for word in words if any(character.isalpha() for character in word)]


def query_vector(text: str, tokenizer: Tokenizer) -> models.SparseVector:
    """Return the terms of a question; a text query counts a repeated one once."""
    indices = sorted({bm25.term_id(token) for token in tokenizer(text)})
    return models.SparseVector(indices=indices, values=[1.0] * len(indices))


def by_text_index(searched: Searched, tokenizer: Tokenizer, constants: Constants) -> dict[str, Scores]:
    """Return nDCG@10 of searches by a text index, alone and beside the dense vectors of the built-in pair.

    Both get the scale that the number of the question's words gives, unknown to a client: the server cuts.
    """
    counts = [Counter(map(bm25.term_id, tokenizer(text))) for text in searched.documents]
    average = float(np.mean([sum(its.values()) for its in counts if its]))
    documents = [bm25.weighted(its, average_length=average, k1=constants.k1, b=constants.b) for its in counts]
    found = scored(searched, documents, [lambda text: query_vector(text, tokenizer)])
    return {"bm25": found["weighted"], "hybrid": found["hybrid"]}


def in_local_mode(searched: Searched, tokenizer: Tokenizer) -> float:
    """Return the largest difference of a score by local mode's `TextQuery` from ours, over the first hits."""
    cut = [tokenizer(text) for text in searched.documents]
    counts = [Counter(map(bm25.term_id, tokens)) for tokens in cut]
    average = float(np.mean([len(tokens) for tokens in cut if tokens]))
    client, worst = QdrantClient(":memory:"), 0.0
    client.create_collection("texts", vectors_config={})
    index = models.TextIndexParams(type=models.TextIndexType.TEXT, scoring=True)
    client.create_payload_index("texts", "text", index)
    points = [models.PointStruct(id=n, vector={}, payload={"text": " ".join(tokens)}) for n, tokens in enumerate(cut)]
    client.upsert("texts", points)
    holders: Counter[int] = Counter(term for its in counts for term in its)
    corpus = sum(map(bool, counts))
    for _, question, _ in searched.questions[:CHECKED]:
        query = models.TextQuery(text=" ".join(tokenizer(question)))
        for hit in client.query_points("texts", query=query, using="text", limit=10).points:
            document = bm25.weighted(counts[int(hit.id)], average_length=average, k1=TEXT_INDEX.k1, b=TEXT_INDEX.b)
            terms = set(query_vector(question, tokenizer).indices)
            ours = sum(
                value * np.log((corpus - holders[term] + 0.5) / (holders[term] + 0.5) + 1)
                for term, value in zip(document.indices, document.values, strict=True)
                if term in terms
            )
            worst = max(worst, abs(hit.score - ours))
    return worst


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@output_option
def main(data: Path, output: Path) -> None:
    """Search the development set by a text index and by our sparse vector.

    \b
    Example:
      python -m benchmarks.experiments.text_index DATA --output RESULT.json
    """
    searched = split_of(Counted(read_task(data, "dev"), built_in_tokenizer()), "dev", (), Path())
    ours = scores(searched, [Constants()], [CareModel.load().query_terms])[Constants()]
    systems = {"sparse vector": {"bm25": ours["weighted"], "hybrid": ours["hybrid"]}}
    tokenizers: Sequence[tuple[str, Tokenizer]] = (("multilingual", multilingual), ("word", unindexed_text_tokens))
    for name, tokenizer in tokenizers:
        for constants in (TEXT_INDEX, Constants(lead=None)):
            way = f"text index, {name}, k1 {constants.k1}, b {constants.b}"
            systems[way] = by_text_index(searched, tokenizer, constants)
    means = {way: {kind: float(its.mean()) for kind, its in found.items()} for way, found in systems.items()}
    means["sparse vector without weights of query terms"] = {"bm25": float(ours["bm25"].mean())}
    gains = {
        kind: [
            asdict(gain)
            for gain in compare_with_base("sparse vector", {way: its[kind] for way, its in systems.items()})
        ]
        for kind in ("bm25", "hybrid")
    }
    difference = in_local_mode(searched, multilingual)
    save_measured(
        output, {"questions": len(searched.questions), "means": means, "gains": gains, "local_mode": difference}
    )


if __name__ == "__main__":
    main()
