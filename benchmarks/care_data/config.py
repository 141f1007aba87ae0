"""The TOML file of a benchmark: strict frozen models, and all problems of a file in one error."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from care_trainer.config.load import problems_of, read_toml, refusal
from care_trainer.config.stages import STRICT, Count, CountOrZero, Name, Positive, PositiveOrZero, Share
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from care_qdrant import InputError, remember_secret

Language = Literal["zh", "en"]
Rule = Literal["unanimous", "majority", "weighted"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Retriever:
    """One system whose best documents enter the pool. BM25 is always one of them, under the name ``bm25``."""

    name: Name
    """Name under which what it found is recorded."""
    kind: Literal["dense", "hybrid", "vector", "run"] = "dense"
    """``dense`` and ``hybrid`` search as `care search` does; ``vector`` searches a named vector that another program
    wrote; ``run`` reads the rankings of a file."""
    model: Name = "built-in"
    """Pair or sentence-transformers model that encodes the queries; the model on the server where ``url`` is set."""
    vector_name: str | None = None
    """Named vector to search. None takes the one that ``model`` made."""
    url: str | None = None
    """OpenAI-compatible embeddings endpoint, as ``https://host/v1``, for ``vector``. None encodes here."""
    key_env: str | None = None
    """Environment variable that holds the key of ``url``."""
    path: str | None = None
    """TREC run file of ``run``: query, Q0, document, rank, score, name in each line."""
    family: str | None = None
    """Models of one family find the same documents. None takes ``model``."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Judge:
    """One language model that rates documents."""

    name: Name
    """Name of its votes."""
    url: Name
    """OpenAI-compatible endpoint, as ``https://host/v1``."""
    model: Name
    """Model name on the server."""
    family: Name
    """Who made the model; judges of one family err together."""
    key_env: str | None = None
    """Environment variable that holds the API key. None sends no key."""
    tier: Annotated[int, Field(ge=1, le=2)] = 1
    """1 rates everything; 2 rates what the judges of tier 1 dispute."""
    input_price: PositiveOrZero = 0.0
    """Price of a million input tokens, in any one currency."""
    output_price: PositiveOrZero = 0.0
    """Price of a million output tokens."""
    requests_per_minute: Positive = 600.0
    """Rate limit of the endpoint."""
    concurrency: Count = 4
    """Calls at once."""
    timeout_seconds: Positive = 60.0
    """Longest wait for one answer."""
    max_tokens: Count = 512
    """Longest answer, in tokens."""
    retries: CountOrZero = 5
    """Tries after the first one where the endpoint is busy or fails."""
    max_wait_seconds: Positive = 60.0
    """Longest wait between two tries."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Source:
    """Where the documents come from: a collection that LlamaIndex, another program or `care ingest` wrote."""

    collection: Name
    path: str | None = None
    """Folder of the embedded database. Exactly one of ``path`` and ``url``."""
    url: str | None = None
    """URL of a Qdrant server; its key is read from ``QDRANT_API_KEY``."""
    queries: Name
    """JSON Lines of the questions: ``id``, ``text``."""
    license: str = ""
    """License of the texts, for the data card."""
    origin: str = ""
    """Where the texts are from, for the data card."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Pool:
    """Which documents are judged."""

    depth: Count = 50
    """Documents of each retriever and query; the paper takes 500 for the benchmark and 50 for training [B, C.1]."""
    limit: Count | None = None
    """Most documents of a query after fusion. None keeps all."""
    near_duplicate: Share = 0.9
    """Texts whose character 4-grams overlap this much (Jaccard) are judged once."""
    tested_family: str | None = None
    """Family of the system that the benchmark is for; a pool of that family alone is warned about."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Judging:
    """How the judges are asked."""

    language: Language = "zh"
    """Language of the instructions."""
    batch: Count = 10
    """Documents of one call."""
    stop_after: Count | None = None
    """Ask no deeper after so many batches in a row without a relevant document. None judges the whole pool."""
    anchors: CountOrZero = 20
    """Queries whose first call carries three planted documents: irrelevant, long, and stuffed with its words."""
    attempts: Count = 3
    """Calls for documents that an answer left out, or that were not rated S, A, B, C or D."""
    max_cost: Positive | None = None
    """Spend no more, in the currency of the prices, unanswered calls included. None is no limit."""
    allow_missing: bool = False
    """Go on with the votes that are there when a judge cannot be reached."""
    seed: int = 0
    """Decides the order of the documents in a call, and the planted ones."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Imported:
    """Judgements from elsewhere, as one more judge."""

    name: Name
    path: Name
    """TREC qrels (query, 0, document, grade), or umbrela's JSON Lines with judgments."""
    relevant_from: Count = 1
    """Lowest grade that counts as relevant; umbrela's scale from 0 to 3 takes 2."""
    family: str = "imported"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Vote:
    """How votes become labels."""

    rule: Rule = "unanimous"
    """``unanimous`` is the paper's [B]; ``weighted`` weighs a judge by its agreement with the experts."""
    exclude: tuple[Name, ...] = ()
    """Judges whose votes do not count."""
    max_missing: Share = 0.2
    """Refuse to label when more of the votes are missing."""
    max_failed_anchors: Share = 0.5
    """Refuse a judge that rates more of the planted documents relevant."""
    sheets: tuple[Name, ...] = ()
    """Spreadsheets that experts filled in (``care-data review``)."""
    imported: tuple[Imported, ...] = ()
    group_by: str | None = "department"
    """Metadata key by which agreement is reported."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Build:
    """What is written as a benchmark."""

    corpus: Literal["whole", "pooled"] = "whole"
    """``pooled`` leaves out documents that no retriever found."""
    rerank_negatives: Count = 20
    """Judged negatives of a reranking query, at most."""
    sts: str | None = None
    """JSON Lines of sentence pairs (``care-data sts``) for an STS task."""
    train: tuple[Name, ...] = ()
    """Training sets that the benchmark must share no text with."""
    near_duplicate: Share = 0.8
    """Overlap (Jaccard of character 4-grams) from which two questions are one."""
    drop: bool = False
    """Leave out questions that repeat another one or a training set, instead of refusing them."""
    allow_same_judges: bool = False
    """Accept judges that also labelled a training set."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A whole configuration."""

    name: Name
    folder: Name
    """Folder of everything that is written, relative to the file."""
    source: Source
    pool: Pool = Field(default_factory=Pool)
    retriever: tuple[Retriever, ...] = ()
    judging: Judging = Field(default_factory=Judging)
    judge: tuple[Judge, ...] = ()
    vote: Vote = Field(default_factory=Vote)
    build: Build = Field(default_factory=Build)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings, and the folder that their paths are relative to."""

    settings: Settings
    root: Path

    @property
    def folder(self) -> Path:
        """Return the folder that receives everything."""
        return self.root / self.settings.folder

    def at(self, path: str) -> Path:
        """Return a path of the file as one that can be opened."""
        return self.root / path


def load_plan(path: Path) -> Plan:
    """Read and check a configuration.

    Raises:
        InputError: The file is missing or wrong; all problems are named.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; docs/data.md has a configuration to start from")
    try:
        settings = TypeAdapter(Settings).validate_json(json.dumps(read_toml(path), default=str))
    except ValidationError as error:
        raise refusal(str(path), problems_of(error, Settings)) from None
    if problems := list(_contradictions(settings)):
        raise refusal(str(path), problems)
    return Plan(settings=settings, root=path.resolve().parent)


def secret(variable: str | None, what: str) -> str | None:
    """Return the key that an environment variable holds; it is hidden in all that is printed from now on."""
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise InputError(f"{what}: the environment variable {variable} is not set; it must hold the API key")
    remember_secret(value)
    return value


def _contradictions(settings: Settings) -> Iterator[str]:
    if (settings.source.path is None) == (settings.source.url is None):
        yield "source: exactly one of path and url must be set"
    for kind, names in (
        ("retriever", ["bm25", *(each.name for each in settings.retriever)]),
        ("judge", [*(each.name for each in settings.judge), *(each.name for each in settings.vote.imported)]),
    ):
        yield from (f"{kind}: {name!r} is used {n} times" for name, n in Counter(names).items() if n > 1)
    if settings.judge and not any(judge.tier == 1 for judge in settings.judge):
        yield "judge: no judge has tier 1"
    for retriever in settings.retriever:
        if (retriever.kind == "run") != (retriever.path is not None):
            yield f"retriever {retriever.name}: path is set for kind = 'run', and for no other"
        if retriever.kind == "vector" and retriever.vector_name is None:
            yield f"retriever {retriever.name}: kind = 'vector' needs a vector_name"
