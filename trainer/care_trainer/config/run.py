"""The settings of a run, without its stages. Sections and tables refer to arXiv 2604.10937."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from care_trainer.config.stages import (
    STRICT,
    AnyStage,
    Count,
    CountOrZero,
    Fraction,
    Geometry,
    Name,
    PositiveOrZero,
    Share,
    Side,
    Threshold,
)

MIN_DOCUMENTS = 200
"""Fewest texts with a stored vector; with fewer, held-out documents cannot confirm that anything was learned."""
COLLECTION = "collection"
"""Name of the data set of a collection's texts, and of the folder in which they are kept."""
COLLECTION_TEXTS = "texts.jsonl"
"""Name of the file of these texts in that folder."""
BASE = "base"
"""Name of the folder with the inputs of a run: base models, and what was read from a collection."""
ROWS = "rows"
"""Name of the folder of rows below a run's output until the model is exported, or below its cache."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Scratch:
    """The shape of a base model with random weights."""

    architecture: Literal["bert", "qwen3"] | None = None
    """Architecture. None means BERT for queries and Qwen3 for documents."""
    layers: Count
    """Transformer layers."""
    hidden: Count
    """Hidden size. A multiple of ``heads``."""
    heads: Count
    """Attention heads."""
    intermediate: Count
    """Width of the feed-forward layers."""
    key_value_heads: Count | None = None
    """Key-value heads of a Qwen3 model. None means the same number as ``heads``."""
    positions: Count = 512
    """Longest input in tokens that the architecture can read."""
    dropout: Fraction = 0.1
    """Dropout of a BERT model. Qwen3 has none."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Lora:
    """Low-rank adapters, trained instead of all weights [D.2]."""

    rank: Count = 32
    """Rank of the adapters [D.2]."""
    alpha: Count = 64
    """Scale of the adapters [D.2]."""
    dropout: Fraction = 0.0
    """Dropout before the adapters. Open in the paper."""
    targets: Name = "all-linear"
    """Modules that get an adapter, in peft's notation. Open in the paper."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StoredDocuments:
    """A Qdrant collection in place of a document encoder: texts, and the vectors that a model made for them.

    Stage I learns from them, and the query encoder is registered there. The server's key is in ``QDRANT_API_KEY``.
    """

    name: Name
    """Name of the collection, or an alias."""
    url: Name | None = None
    """URL of the server. None without ``path`` means ``QDRANT_URL``, or else the folder ``qdrant``."""
    path: Name | None = None
    """Folder of the embedded database, in place of ``url``."""
    vector: str | None = None
    """Name of the dense vector; the empty text means the unnamed one. None means the only one."""
    text_field: Name | None = None
    """Payload field with the text, such as ``body`` or ``document.body``. None guesses it."""
    sample: Annotated[int, Field(ge=MIN_DOCUMENTS)] = 100_000
    """Highest number of points to read, drawn at random."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Tower:
    """One of the two encoders. It has exactly one of ``base``, ``scratch``, ``static`` and ``collection``."""

    base: Name | None = None
    """Folder or hub name of a pretrained model [5.1]."""
    revision: Name | None = None
    """Commit or tag of a hub model. None means the newest."""
    scratch: Scratch | None = None
    """Shape of a model with random weights; needs ``[vocabulary]``."""
    static: Count | None = None
    """Dimensions of a static query encoder: a text is the mean of its token vectors; needs ``[vocabulary]``."""
    collection: StoredDocuments | None = None
    """Collection whose stored vectors replace a document encoder; its texts are the data set ``collection``."""
    pooling: Literal["cls", "mean", "lasttoken", "own"] = "cls"
    """Method by which token vectors become one vector [G]. ``own`` keeps the modules of a ``base``
    (a sentence-transformers model or a CARE folder): pooling, token weights and Dense layers."""
    max_tokens: Count = 512
    """Longest input in tokens, special tokens and prompt included [G]."""
    prompt: str = ""
    """Text put before each input [open]."""
    eos: Name | None = None
    """Token appended to each text for last-token pooling [G]. None means the tokenizer's own."""
    lora: Lora | None = None
    """Adapters. None trains all weights."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Dtype of a frozen ``base``; trained parameters are float32. None means the checkpoint's dtype."""
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2"] | None = None
    """Attention of a ``base``. None means the library's choice."""
    quantization: Literal["nf4", "int8"] | None = None
    """Load a ``base`` in 4 or 8 bits under trained adapters (QLoRA), on a GPU with bitsandbytes; the export merges into
    the base as it was. None is off."""
    projection: bool = False
    """Add a trainable linear layer up to ``dim`` to a query encoder. The paper's pairs have none."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Vocabulary:
    """The byte-pair tokenizer that encoders from scratch share; the same texts make the same file."""

    data: str
    """Name of the data set whose texts train the tokenizer."""
    size: Count = 12000
    """Tokens in the vocabulary."""
    min_frequency: Count = 2
    """Lowest number of occurrences of a token."""
    max_piece_characters: Count = 6
    """Longest token in characters. It keeps whole Chinese phrases out of the vocabulary."""
    max_texts: Count = 200_000
    """Highest number of texts to train the tokenizer on, taken evenly from the data set."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Diversify:
    """The rule by which near-duplicates of earlier pairs are left out [C.1, table 10], each side on its own."""

    encoder: Name = "built-in"
    """Encoder that measures the similarity: ``built-in``, a CARE folder or any sentence-transformers model [C.1].
    The default thresholds are for ``built-in``: they leave 1 % of 2,500 questions and 4 % of their answers out. The
    paper's encoder is gte-multilingual-base, its thresholds 0.85 and 0.78."""
    query_threshold: Threshold = 0.88
    """Cosine above which two queries are similar [table 10]."""
    document_threshold: Threshold = 0.9
    """Cosine above which two documents are similar [table 10]."""
    neighbours: CountOrZero = 1
    """Similar texts that may have been kept before a new one is left out [table 10]."""
    sides: Literal["both", "query", "none"] = "both"
    """Sides whose near-duplicates are left out; ``query`` and ``none`` keep as many pairs as ``both`` [table 11]."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Data:
    """One data set: JSONL files, plain or ``.gz``.

    A row is a pair (``query`` and ``positive``, ``negatives`` optional), FlagEmbedding's shape (``query``, ``pos``,
    ``neg``), two texts with a score (``sentence1``, ``sentence2``, ``score``), or a single ``text``. A
    row counts once: where prompt, texts, negatives and score are those of an earlier row, it is left out.
    """

    files: Annotated[tuple[Name, ...], Field(min_length=1)]
    """File names below ``data_root``."""
    weights: dict[str, PositiveOrZero] = Field(default_factory=dict)
    """How often each row of a source is used in one epoch. A source that is not named has weight 1; 0 leaves it out.
    The source of a row without one is the name of its file. Each epoch draws new rows, so with a weight of 0.25 all
    rows are seen in about four epochs."""
    tasks: dict[str, Name] = Field(default_factory=dict)
    """Task of a source, whose prompts its texts get [published script]. A source that is not named has the
    encoders' own prompts."""
    licenses_excluded: tuple[str, ...] = ()
    """Values of a row's ``license`` (or ``licence``) that leave the row out."""
    max_characters: Count | None = None
    """Length in characters to which every text is cut. None is off."""
    max_rows: Count | None = None
    """Highest number of rows to keep after the filters, in file order. None keeps all."""
    diversify: Diversify | None = None
    """Leaves near-duplicates out of pairs. None is off."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Task:
    """The prompts of a kind of queries, stored in the exported folder under the task's name."""

    query: str = ""
    """Prompt of queries [table 8]."""
    document: str = ""
    """Prompt of documents [published script]."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Evaluation:
    """A labelled retrieval set: ``corpus``, ``queries`` and ``qrels`` as ``.jsonl`` or ``.jsonl.gz`` in one folder."""

    retrieval: Name
    """Folder below ``data_root``."""
    max_queries: Count | None = None
    """Highest number of queries to score, in file order. None means all."""
    batch_size: Count = 64
    """Texts encoded at once."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Export:
    """The settings of the exported CARE folder."""

    half_weights: bool = False
    """Store weights as float16: half the size, loaded as float32. A static encoder stays float32."""
    fp32_onnx: bool = True
    """Keep the float32 graph next to the int8 one. It takes four bytes per parameter of the query encoder."""
    probe: str | None = None
    """Name of the data set whose queries test the int8 query encoder. None means the last stage's."""
    probe_texts: Count = 256
    """Number of pairs used for that test."""
    force: bool = False
    """Register the query encoder of a ``[document.collection]`` even if its quality is below the limit."""
    license: str = ""
    """SPDX identifier of the weights' license."""
    alpha: Share | None = None
    """Share of the dense score in hybrid searches; None lets each collection measure it."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Run:
    """All settings of a training run."""

    name: Name
    """Name of the model."""
    output: str
    """Output folder. Each stage writes one folder below it, and the export writes ``output/name``."""
    dim: Count
    """Dimensions of the space that both encoders share [4.2]."""
    query: Tower
    """The query encoder."""
    document: Tower
    """The document encoder."""
    data: dict[str, Data] = Field(default_factory=dict)
    """Data sets by name."""
    stage: tuple[AnyStage, ...] = ()
    """Stages in order. Without stages, a run writes only the base models."""
    tasks: dict[Name, Task] = Field(default_factory=dict)
    """Prompts by the name of a task [table 8]."""
    data_root: str = "."
    """Folder of all data files."""
    geometry: Geometry = "unit"
    """Geometry of document vectors: ``unit`` has length 1 at ``dim``, compared by cosine; ``cut`` is normalised at full
    width, cut to ``dim`` and not normalised again, scored by dot product, as in the published script."""
    symmetric: Side | None = None
    """Side whose encoder encodes both sides: the symmetric models of table 4. None trains two encoders."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of all random draws [open]."""
    checkpoint_minutes: PositiveOrZero = 5.0
    """Minutes between two checkpoints of a stage. 0 means after every step."""
    teacher_cache: Name | None = None
    """Folder that runs share, with document vectors (each text is encoded once) and tables of rows. None is off."""
    teacher_jobs: tuple[Name, ...] = ()
    """Jobs of ``care bulk encode`` over the texts: where a sample agrees with the encoder of a stage, their vectors go
    into ``teacher_cache``."""
    dataloader_workers: CountOrZero = 0
    """Processes that read and tokenise batches ahead, at most one per core. 0 does this between the steps."""
    tf32: bool = False
    """Multiply float32 matrices in TF32 where the device has it."""
    report_to: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()
    """Trackers in addition to metrics.jsonl."""
    vocabulary: Vocabulary | None = None
    """Tokenizer of encoders from scratch."""
    evaluation: Evaluation | None = None
    """Retrieval set that scores each stage."""
    export: Export = Field(default_factory=Export)
    """The exported folder."""

    @property
    def collection_folder(self) -> Path:
        """Folder with the texts and vectors read from the collection of ``[document.collection]``."""
        return Path(self.output).absolute() / BASE / COLLECTION

    def data_set(self, name: str) -> Data:
        """Return a data set by its name; ``collection`` names a collection's texts."""
        if self.document.collection is not None and name == COLLECTION:
            return Data(files=(str(self.collection_folder / COLLECTION_TEXTS),))
        return self.data[name]
