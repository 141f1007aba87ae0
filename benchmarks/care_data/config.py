"""The TOML file of a benchmark: strict tables, all problems in one error. Keys: docs/reference/benchmark-keys.md."""

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from care_trainer.config.load import problems_of, read_toml, refusal
from care_trainer.config.stages import STRICT, Count, CountOrZero, Name, Positive, PositiveOrZero, Share
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from care_qdrant.errors import InputError, remember_secret

Language = Literal["zh", "en"]
Rule = Literal["unanimous", "majority", "weighted"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Retriever:
    """One system whose best documents enter the pool. BM25 is always one of them, under the name ``bm25``."""

    name: Name
    """Name in the pool and in reports."""
    kind: Literal["dense", "hybrid", "vector", "run"] = "dense"
    """``dense`` and ``hybrid`` search as `care search` does; ``vector`` searches a named vector that another program
    wrote; ``run`` reads the rankings of a file."""
    model: Name = "built-in"
    """Model that encodes the queries: a CARE folder or ``built-in``; with ``url``, the model on that server."""
    vector_name: str | None = None
    """Named vector that is searched. None is the one that ``model`` made."""
    url: str | None = None
    """OpenAI-compatible embeddings endpoint of a ``vector``. None encodes here."""
    key_env: str | None = None
    """Environment variable that holds the endpoint's key. None sends no key."""
    path: str | None = None
    """TREC run file of a ``run``: query, Q0, document, rank, score, name in each line."""
    family: str | None = None
    """Maker of the model: models of one family find the same documents. None is ``model``."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Judge:
    """One language model behind an OpenAI-compatible endpoint, and its prices."""

    name: Name
    """Name in reports and in votes."""
    url: Name
    """Address of the endpoint, such as ``https://host/v1``."""
    model: Name
    """Model on that server."""
    family: Name
    """Maker of the model: judges of one family err together."""
    key_env: str | None = None
    """Environment variable that holds the API key. None sends no key."""
    tier: Annotated[int, Field(ge=1, le=2)] = 1
    """1 rates everything, 2 only what tier 1 disputes."""
    input_price: PositiveOrZero | None = None
    """Price of a million input tokens, in any one currency. None counts as free, with a warning."""
    output_price: PositiveOrZero | None = None
    """Price of a million output tokens."""
    requests_per_minute: Positive = 600.0
    """Largest number of requests a minute."""
    concurrency: Count = 4
    """Requests at the same time."""
    timeout_seconds: Positive = 60.0
    """Longest wait for one answer, in seconds."""
    max_tokens: Count = 512
    """Highest number of tokens in one answer."""
    retries: CountOrZero = 5
    """Retries after the first attempt when the endpoint is busy or fails."""
    max_wait_seconds: Positive = 60.0
    """Longest wait between two attempts, in seconds."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Source:
    """Source of the documents: a collection that LlamaIndex, another program or `care ingest` wrote."""

    collection: Name
    """Name of the collection."""
    path: str | None = None
    """Folder of the embedded database; give ``path`` or ``url``."""
    url: str | None = None
    """URL of a Qdrant server; its key is in ``QDRANT_API_KEY``."""
    queries: Name
    """JSON Lines with ``id`` and ``text``, and ``license`` and ``source`` where a row has its own."""
    license: str = ""
    """License of the texts, for the data card."""
    origin: str = ""
    """Where the texts come from, for the data card."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Pool:
    """Settings of the pool: the documents that are judged."""

    depth: Count = 50
    """Documents of each retriever; the paper takes 500 for a benchmark and 50 for training [B, C.1]."""
    limit: Count | None = None
    """Highest number of documents of a query after fusion. None sets no limit."""
    near_duplicate: Share = 0.9
    """Jaccard overlap of character 4-grams from which two texts are judged once."""
    tested_family: str | None = None
    """Family of the system under test; a pool of only that family causes a warning."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Judging:
    """Settings of the requests to judges."""

    language: Language = "zh"
    """Language of the instructions."""
    batch: Count = 10
    """Number of documents in one call."""
    stop_after: Count | None = None
    """Batches in a row without a relevant document after which a question is judged no deeper. None judges all."""
    anchors: CountOrZero = 20
    """Questions whose first call has planted documents: irrelevant, long, stuffed."""
    attempts: Count = 3
    """Calls for documents that an answer left out or did not rate."""
    max_cost: Positive | None = None
    """Highest cost in the currency of the prices, unanswered calls included. None sets no limit."""
    allow_missing: bool = False
    """Continue without a judge that cannot be reached."""
    seed: int = 0
    """Seed of the planted documents and of their order."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Imported:
    """Judgements from elsewhere, as one more judge: TREC qrels, or umbrela's JSON Lines."""

    name: Name
    """Name of this judge."""
    path: Name
    """TREC qrels, or umbrela's JSON Lines."""
    relevant_from: Count = 1
    """Lowest relevant grade; umbrela's scale from 0 to 3 takes 2."""
    family: str = "imported"
    """Family of this judge."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Vote:
    """Settings of the vote that turns judgements into labels."""

    rule: Rule = "unanimous"
    """Rule of the labels. ``unanimous`` is the paper's [B]; ``weighted`` weighs a judge by its agreement with the
    experts."""
    exclude: tuple[Name, ...] = ()
    """Judges whose votes do not count."""
    max_missing: Share = 0.2
    """Largest share of missing votes; with more, nothing is labelled."""
    max_failed_anchors: Share = 0.5
    """Largest share of the planted documents that a judge may rate relevant."""
    sheets: tuple[Name, ...] = ()
    """Spreadsheets that experts filled in."""
    imported: tuple[Imported, ...] = ()
    """Judgements from elsewhere, each as one more judge."""
    group_by: str | None = "department"
    """Metadata key by which agreement is reported. None is off."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sts:
    """Settings of the sentence pairs made with synonyms [3.1, table 22]."""

    dictionary: Name
    """JSON Lines of synonyms: ``origin``, ``replace``, and ``license`` where a row has its own."""
    writer: Judge
    """Language model that rewrites the questions; it has the keys of a judge."""
    length_tolerance: Share = 0.3
    """Fraction by which a positive may be longer or shorter than its question."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Build:
    """Settings of the benchmark that is written."""

    corpus: Literal["whole", "pooled"] = "whole"
    """``pooled`` leaves out documents that no retriever found."""
    rerank_negatives: Count = 20
    """Highest number of judged negatives of a reranking query."""
    train: tuple[Name, ...] = ()
    """Training sets with which the benchmark may share no question."""
    near_duplicate: Share = 0.8
    """Overlap from which two questions count as one."""
    drop: bool = False
    """Leave out repeated questions instead of refusing them."""
    allow_same_judges: bool = False
    """Accept judges that also labelled a training set."""
    min_answered: Share = 0.5
    """Smallest share of the questions with a relevant document; with fewer, nothing is built."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A whole configuration."""

    name: Name
    """Name of the benchmark."""
    folder: Name
    """Output folder, relative to the file."""
    source: Source
    pool: Pool = Field(default_factory=Pool)
    retriever: tuple[Retriever, ...] = ()
    judging: Judging = Field(default_factory=Judging)
    judge: tuple[Judge, ...] = ()
    vote: Vote = Field(default_factory=Vote)
    build: Build = Field(default_factory=Build)
    sts: Sts | None = None


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings, and the folder that their paths are relative to."""

    settings: Settings
    root: Path
    file: str = "CONFIG"
    """Path of the configuration as it was given, for the commands that messages name."""
    again: tuple[str, ...] = ()
    """Judges that are asked again where their stored answers could not be read."""

    @property
    def folder(self) -> Path:
        """Return the output folder."""
        return self.root / self.settings.folder

    @property
    def families(self) -> list[str]:
        """Return the model families of all judges and of the writer; rows of training data carry them."""
        labels = {judge.family for judge in self.settings.judge} | {
            judge.family for judge in self.settings.vote.imported
        }
        return sorted(labels | ({self.settings.sts.writer.family} if self.settings.sts else set()))

    def command(self, step: str) -> str:
        """Return the command that runs a step of this configuration."""
        return f"care data {step} {shlex.quote(self.file)}"

    def at(self, path: str) -> Path:
        """Return a path of the configuration, resolved against its folder."""
        return self.root / path


def load_config(path: Path) -> Config:
    """Read and check a configuration; `InputError` names all its problems."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; docs/how-to/make-a-benchmark.md has a configuration to start from")
    try:
        settings = TypeAdapter(Settings).validate_json(json.dumps(read_toml(path), default=str))
    except ValidationError as error:
        raise refusal(str(path), problems_of(error, Settings)) from None
    if problems := list(_contradictions(settings)):
        raise refusal(str(path), problems)
    return Config(settings=settings, root=path.resolve().parent, file=str(path))


def secret(variable: str | None, what: str) -> str | None:
    """Return the key that an environment variable holds; from now on it is hidden in all output."""
    if variable is None:
        return None
    if not (value := os.environ.get(variable)):
        raise InputError(f"{what}: the environment variable {variable} is not set; it must hold the API key")
    remember_secret(value)
    return value


def ask_again(config: Config, names: tuple[str, ...]) -> Config:
    """Return the configuration with judges, or the writer, to ask again."""
    known = [
        *(judge.name for judge in config.settings.judge),
        *([config.settings.sts.writer.name] if config.settings.sts else []),
    ]
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"--again {unknown[0]}: unknown judge; expected one of {', '.join(known)}")
    return replace(config, again=names)


def _contradictions(settings: Settings) -> Iterator[str]:
    judges = [*(judge.name for judge in settings.judge), *(judge.name for judge in settings.vote.imported)]
    if (settings.source.path is None) == (settings.source.url is None):
        yield "source: exactly one of path and url must be set"
    for kind, names in (
        ("retriever", ["bm25", *(retriever.name for retriever in settings.retriever)]),
        ("judge", judges),
    ):
        yield from (f"{kind}: {name!r} is used {n} times" for name, n in Counter(names).items() if n > 1)
    yield from (
        f"vote.exclude: no judge is named {name!r} (known: {', '.join(judges) or 'none'})"
        for name in settings.vote.exclude
        if name not in judges
    )
    if settings.judge and not any(judge.tier == 1 for judge in settings.judge):
        yield "judge: no judge has tier 1"
    for retriever in settings.retriever:
        if (retriever.kind == "run") != (retriever.path is not None):
            yield f"retriever {retriever.name}: only kind = 'run' takes a path, and it needs one"
        if retriever.kind == "vector" and retriever.vector_name is None:
            yield f"retriever {retriever.name}: kind = 'vector' needs a vector_name"
