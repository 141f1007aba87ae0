"""Makes a scored model from question–answer pairs: a held-out part, a configuration, the training, one table."""

import hashlib
import json
import random
import re
import shlex
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from care_qdrant import CareModel, Document, IngestSettings, Mode, Retriever, ingest, open_client
from care_qdrant.console.outputs import require_own
from care_qdrant.errors import InputError, counted
from care_qdrant.measures import Estimate, estimate, ndcg_at_10, recall_at_10
from care_qdrant.model.hub import BUILT_IN
from care_trainer.config import Data, Run, load_run
from care_trainer.config.run import BASE, ROWS
from care_trainer.config.stages import STAGE_TYPES
from care_trainer.data.read import Pair, iter_pairs, license_of, plain_text, write_rows
from care_trainer.data.report import leaks
from care_trainer.disk import write_json
from care_trainer.evaluation import read_retrieval
from care_trainer.learn.start import built_in_reads
from care_trainer.training.context import Report

CONFIG, DATA, HELD_OUT, RESULT = "start.toml", "data", "held-out", "result.json"
TRAIN = "train.jsonl"
_SEARCHED = ("corpus.jsonl", "queries.jsonl", "qrels.jsonl")
"""Files of the held-out part: documents, questions and judgements."""
_WRITTEN = re.compile(rb"# Written by: care-train start ")
"""First line of a configuration that this module wrote."""
SCRATCH = "scratch"
FEWEST_HELD_OUT, MOST_HELD_OUT = 20, 2000
FEWEST_TRAINED = 20
"""Fewest pairs to train on: as many batches of one pair as an epoch should have."""
MOST_OTHERS = 2000
"""Training answers added to the held-out corpus, since questions always succeed among their own answers alone."""
SEEN = {"cpu": 60_000, "cuda": 600_000}
"""Pairs that the last stage sees, by device; it determines the epochs."""
MOST_EPOCHS = 8
WORTH_SAYING = 10
"""CPU minutes from which a run forecasts the time of a stage."""
_TIMED_STEPS = 12
"""Steps of a stage after its first one from which the time of the rest is forecast."""
_TOP = 10
_FROM_SCRATCH = """dim = 256

# Two layers for queries, three for documents, all weights random: the data teach them everything.
[query]
pooling = "mean"
max_tokens = 128
scratch = { layers = 2, hidden = 256, heads = 4, intermediate = 1024, dropout = 0.0 }

[document]
pooling = "mean"
max_tokens = 256
scratch = { layers = 3, hidden = 320, heads = 5, intermediate = 960 }

[vocabulary]
data = "pairs"
size = 12000
"""
_STATIC = """
# A table of token vectors, from which both encoders start.
[[stage]]
kind = "static"
data = "pairs"
epochs = 9
batch_size = 512
learning_rate = 3e-3
warmup = 0.0
weight_decay = 0.0
temperature = 0.05
token_dropout = 0.3
symmetric = true
"""


BOTH = "after and BM25"
"""Name of the search by the trained model and BM25 together."""
INCLUDED_HAS_READ = (
    "'before' is the included model, which was trained on public pairs: if yours are among them, it has read these "
    "questions, its figures are too good, and so is what the training gained too small"
)
"""Note for a comparison with the included model."""


@dataclass(frozen=True)
class Prepared:
    """Contents of the folder before anything is trained."""

    config: Path
    pairs: int
    held_out: int
    """Questions of the held-out part."""
    documents: int
    """Documents among which they search: their answers and negatives, and answers of the training part."""
    licenses: dict[str, int]
    """Pairs by license; the empty text is for those without one."""
    base: str


@dataclass(frozen=True)
class Difference:
    """The nDCG@10 of one search less that of another, question by question."""

    search: str
    other: str
    gain: Estimate

    @property
    def verdict(self) -> str:
        """Verdict in words; a difference is clear only if its interval excludes 0."""
        return "better" if self.gain.low > 0 else "worse" if self.gain.high < 0 else "no clear difference"


@dataclass(frozen=True)
class Result:
    """Scores of the model on the held-out questions; each figure is a mean from 0 to 1 with its 95 % interval."""

    model: str
    """Folder of the trained model."""
    ndcg_at_10: dict[str, Estimate]
    recall_at_10: dict[str, Estimate]
    differences: list[Difference]
    """Differences between before and after the training, with and without BM25, and of the
    trained model and BM25 together against every other search."""


def prepare(
    pairs: Path,
    folder: Path,
    *,
    base: str | None = None,
    held_out: int | None = None,
) -> Prepared:
    """Split the pairs and write the configuration, or read the result of an earlier call for the same file.

    No question and no document is on both sides of the split: pairs that share one stay together.
    """
    digest = hashlib.sha256(pairs.read_bytes()).hexdigest()
    record = folder / DATA / "source.json"
    if record.is_file():
        known = json.loads(record.read_text(encoding="utf-8"))
        if known.pop("sha256", None) != digest:
            raise InputError(f"{folder}: was started from another file than {pairs}; give another --output")
        return Prepared(folder / CONFIG, **known)
    held_out_files = [f"{DATA}/{HELD_OUT}/{name}" for name in _SEARCHED]
    require_own(folder, CONFIG, _WRITTEN, [f"{DATA}/{TRAIN}", *held_out_files, RESULT])
    read = list(iter_pairs(Data(files=(pairs.name,)), pairs.parent))
    if scored := [pair for pair in read if pair.score is not None]:
        raise InputError(
            f"{pairs}: holds {counted(len(scored), 'pair')} of texts with a score; expected rows with 'query' and "
            "'positive' (a configuration of your own may have both: care-train configs show nano > my.toml)"
        )
    most = held_out or min(MOST_HELD_OUT, max(FEWEST_HELD_OUT, len(read) // 10))
    train, kept = split(read, most)
    if len(kept) < min(most, FEWEST_HELD_OUT):
        raise InputError(
            f"{pairs}: only {counted(len(kept), 'pair', of=len(read))} can be held out, since the others share a "
            f"question or a document with each other; expected at least {min(most, FEWEST_HELD_OUT)}: give more pairs"
        )
    if len(train) < FEWEST_TRAINED:
        raise InputError(
            f"{pairs}: holds {counted(len(read), 'pair')}, of which {len(kept)} are held out; expected at least "
            f"{FEWEST_TRAINED} to train on: give more pairs"
        )
    trained = {plain_text(text) for pair in train for text in (pair.query, pair.positive, *pair.negatives)}
    chosen = base or (BUILT_IN if built_in_reads([pair.query for pair in read]) else SCRATCH)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # The configuration comes first: it marks the files in its folder as written by this command.
    config, content = folder / CONFIG, _config(pairs, folder, chosen, len(train), device)
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(content, encoding="utf-8")
    documents = _write_held_out(kept, train, trained, folder)
    write_rows(folder / DATA / TRAIN, [pair.row() for pair in train])
    run = load_run(config)
    if leaked := leaks(run):
        raise InputError(
            f"{folder}: {counted(len(leaked), 'held-out text', 'are')} in the training part, such as {leaked[0]!r}"
        )
    licenses = dict(Counter(license_of(pair.other) for pair in read).most_common())
    prepared = Prepared(config, len(train), len({pair.query for pair in kept}), documents, licenses, chosen)
    shown = {"sha256": digest, **vars(prepared)}
    del shown["config"]  # whose path follows from the folder's
    write_json(record, shown)
    return prepared


def forecasting(
    report: Report, tell: Callable[[str, float], None], clock: Callable[[], float] = time.process_time
) -> Report:
    """Return a report that also calls ``tell``, once per stage, with the CPU minutes that the rest of it takes.

    The forecast comes from the first steps on this machine, since models, text lengths and CPU kernels differ by a
    factor of five. The very first step is left out, since it also builds kernels.
    """
    begun: dict[str, tuple[int, float]] = {}
    told: set[str] = set()

    def forecast(what: str, step: int, steps: int, loss: float, of_step: int) -> None:
        report(what, step, steps, loss, of_step)
        first, start = begun.setdefault(what, (step, clock()))
        if step - first >= _TIMED_STEPS and what not in told:
            told.add(what)
            tell(what, (clock() - start) / (step - first) * (steps - step) / 60)

    return forecast


def split(pairs: Sequence[Pair], wanted: int, seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs to train on and those held out, which share no text, ignoring blanks."""
    leader: dict[str, str] = {}

    def find(text: str) -> str:
        while leader.setdefault(text, text) != text:
            leader[text] = text = leader[leader[text]]
        return text

    for pair in pairs:
        leader[find(plain_text(pair.query))] = find(plain_text(pair.positive))
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[find(plain_text(pair.query))].append(pair)
    order = list(groups)
    random.Random(seed).shuffle(order)
    train: list[Pair] = []
    held_out: list[Pair] = []
    for name in order:
        (held_out if len(held_out) + len(groups[name]) <= wanted else train).extend(groups[name])
    secret = {plain_text(text) for pair in held_out for text in (pair.query, pair.positive)}
    train = [
        replace(pair, negatives=tuple(text for text in pair.negatives if plain_text(text) not in secret))
        for pair in train
    ]
    return train, held_out


def measure(run: Run, model: Path, before: str | None) -> Result:
    """Search the held-out documents with their questions: by the models before and after, by BM25, and by both.

    Documents are ingested and searched as in production, in a temporary embedded database.
    """
    corpus, queries, judged = read_retrieval(Path(run.data_root) / HELD_OUT)
    documents = [Document(name, text) for name, text in corpus.items()]
    relevant = [sorted(judged[name]) for name in queries]
    searches: list[tuple[str, str, Mode]] = [
        ("BM25", str(model), "sparse"),
        ("after", str(model), "dense"),
        (BOTH, str(model), "hybrid"),
    ]
    if before is not None:
        searches = [("before", before, "dense"), ("before and BM25", before, "hybrid"), *searches]
    ndcg: dict[str, list[float]] = {}
    recall: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="care-start-") as scratch, open_client(path=Path(scratch)) as client:
        loaded = {source: CareModel.load(source) for source in dict.fromkeys(source for _, source, _ in searches)}
        for number, care in enumerate(loaded.values()):
            settings = IngestSettings(sparse=True, any_language=True)
            ingest(documents, care, client, f"held-out-{number}", settings=settings)
        for name, source, mode in searches:
            collection = f"held-out-{list(loaded).index(source)}"
            hits = Retriever(client, collection, loaded[source], mode=mode).search(list(queries.values()), _TOP)
            ranked = [[hit.document_id for hit in row] for row in hits]
            ndcg[name], recall[name] = ndcg_at_10(ranked, relevant), recall_at_10(ranked, relevant)
    compared = [
        ("after", "before"),
        (BOTH, "before and BM25"),
        ("after", "BM25"),
        (BOTH, "BM25"),
        (BOTH, "after"),
        (BOTH, "before"),
    ]
    return Result(
        str(model),
        {name: estimate(scores, run.seed) for name, scores in ndcg.items()},
        {name: estimate(scores, run.seed) for name, scores in recall.items()},
        [
            Difference(name, other, estimate(np.subtract(ndcg[name], ndcg[other]).tolist(), run.seed))
            for name, other in compared
            if other in ndcg
        ],
    )


def advice(result: Result, base: str) -> str:
    """Return the command that the scores on held-out questions recommend, and the reason.

    The trained model and BM25 together, unless another search was clearly better: questions over few documents are
    easier than those over a whole corpus, where BM25 is more useful.
    """
    scores = {name: score.mean for name, score in result.ndcg_at_10.items()}
    better = [row.other for row in result.differences if row.search == BOTH and row.verdict == "worse"]
    best = max(better, key=lambda name: scores[name], default=BOTH)
    others = ", ".join(f"{name} {score:.3f}" for name, score in scores.items() if name != best)
    why = f"clearly better than {BOTH}" if better else f"no other search is clearly better than {BOTH}"
    model = shlex.quote(base if best.startswith("before") else result.model)
    bm25 = "" if "BM25" in best else " --no-bm25"
    search = f"\ncare search QUERY --model {model} --mode sparse" if best == "BM25" else ""
    return f"recommended: {best} {scores[best]:.3f} ({others}); {why}\ncare ingest CORPUS --model {model}{bm25}{search}"


def rows_of(result: Result) -> list[list[str]]:
    """Return the table of a result, row by row."""
    return [[name, _shown(result.ndcg_at_10[name]), _shown(result.recall_at_10[name])] for name in result.ndcg_at_10]


def differences_of(result: Result) -> list[str]:
    """Return the differences of a result in words, one per line."""
    return [
        f"{row.search} against {row.other}: {row.verdict} ({row.gain.mean:+.3f} [{row.gain.low:+.3f}, "
        f"{row.gain.high:+.3f}])"
        for row in result.differences
    ]


def _shown(value: Estimate) -> str:
    return f"{value.mean:.3f}  [{value.low:.3f}, {value.high:.3f}]"


def _write_held_out(pairs: Sequence[Pair], train: Sequence[Pair], trained: set[str], folder: Path) -> int:
    """Write the retrieval set, and return the number of its documents.

    They are the answers of the held-out pairs, their negatives that no training pair has, and answers of the training
    part, which are not judged.
    """
    texts = dict.fromkeys(pair.positive for pair in pairs)
    negatives = [text for pair in pairs for text in pair.negatives if plain_text(text) not in trained]
    others = list(dict.fromkeys(pair.positive for pair in train))[:MOST_OTHERS]
    documents = {text: f"d{number}" for number, text in enumerate(dict.fromkeys([*texts, *negatives, *others]))}
    queries = {text: f"q{number}" for number, text in enumerate(dict.fromkeys(pair.query for pair in pairs))}
    root = folder / DATA / HELD_OUT
    corpus_file, queries_file, judged_file = (root / name for name in _SEARCHED)
    write_rows(corpus_file, [{"id": name, "text": text} for text, name in documents.items()])
    write_rows(queries_file, [{"id": name, "text": text} for text, name in queries.items()])
    judged = dict.fromkeys((queries[pair.query], documents[pair.positive]) for pair in pairs)
    write_rows(judged_file, [{"query_id": query, "document_id": name, "score": 1} for query, name in judged])
    return len(documents)


def _config(pairs: Path, folder: Path, base: str, rows: int, device: str) -> str:
    """Return the commented configuration for so many pairs on this machine."""
    epochs = min(MOST_EPOCHS, max(1.0, round(SEEN[device] / rows, 1)))
    # Few pairs get small batches, so that an epoch has some twenty steps (docs/evidence/experiments.md).
    batch = min(512 if device == "cuda" else 128, max(16, 1 << (rows // 20).bit_length() - 1))
    bf16 = str(device == "cuda" or _cpu_has_bf16()).lower()
    changed = shlex.quote(str(folder / "changed"))
    own = folder.resolve().name
    taken = own in (BASE, ROWS, *STAGE_TYPES)
    head = f"""# Written by: care-train start {pairs.name}
# A change is trained by: care-train run {shlex.quote(str(folder / CONFIG))} --set output={changed}
# All keys: docs/reference/training-keys.md

name = {_toml(f"{own}-model" if taken else own)}
output = {_toml(str(folder / "run"))}
data_root = {_toml(str(folder / DATA))}
seed = 0
"""
    encoders = _FROM_SCRATCH if base == SCRATCH else _going_on(base)
    common = f"""
[data.pairs]
files = ["train.jsonl"]

# Held-out questions: neither they nor their answers are in train.jsonl. Other answers in it are searched as well.
[evaluation]
retrieval = "{HELD_OUT}"

[export]
probe = "pairs"
"""
    stage_one = f"""
# Stage I: the query encoder learns the document encoder's vector of each text.
[[stage]]
kind = "align"
data = "pairs"
batch_size = {batch}
learning_rate = 3e-4
temperature = 0.05
bf16 = {bf16}
"""
    freeze = base == BUILT_IN and device == "cpu"
    learns = "the query encoder learns" if freeze else "both encoders learn"
    joint = f"""
# Stage II: {learns} that a question belongs to its document, and not to the others of the batch.
[[stage]]
kind = "joint"
data = "pairs"
freeze_document = {str(freeze).lower()}              # false: the layers of documents train, too; that needs a GPU
epochs = {epochs}                    # passes over {rows:,} pairs; more of them take as much longer
batch_size = {batch}
mini_batch_size = {min(batch, 64)}
learning_rate = 2e-4
temperature = 0.05
token_dropout = 0.3
symmetric = true
bf16 = {bf16}                        # this machine multiplies bfloat16 {"fast" if bf16 == "true" else "slowly"}
"""
    before = _STATIC + stage_one if base == SCRATCH else ""
    return head + encoders + common + before + joint


def _going_on(base: str) -> str:
    """Return the part of a configuration for two encoders that continue from a model, with its pooling and prompts."""
    model = CareModel.load(base)
    prompts = {
        side: f"prompt = {_toml(prompt)}\n" if model.card and (prompt := getattr(model.card, side).prompt) else ""
        for side in ("query", "document")
    }
    return f"""dim = {model.dim}

# Both encoders go on from this model, with its own pooling.
[query]
base = {_toml(base)}
pooling = "own"
max_tokens = 128
{prompts["query"]}
[document]
base = {_toml(base)}
pooling = "own"
max_tokens = 256
{prompts["document"]}"""


def _toml(text: str) -> str:
    """Return a text as a string of TOML, which has no escapes for halves of a character, as JSON's ASCII has."""
    return json.dumps(text, ensure_ascii=False)


def _cpu_has_bf16() -> bool:
    facts = Path("/proc/cpuinfo")
    flags = facts.read_text(encoding="utf-8").split() if facts.is_file() else []
    return "avx512_bf16" in flags or "amx_bf16" in flags
