"""What a run is: one TOML file, read into frozen dataclasses.

Sections of the paper (arXiv 2604.10937) in brackets. A value that the paper leaves open says so in the config file.
"""

from dataclasses import dataclass, field
from typing import Literal

StageKind = Literal[
    "bag", "retromae", "causal", "unsupervised", "supervised", "document", "align", "joint", "prune", "distill"
]
Side = Literal["query", "document"]
Tracker = Literal["tensorboard", "trackio", "wandb"]
Schedule = Literal["linear", "cosine", "constant_with_warmup"]


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """The shape of a base model that starts from random weights: BERT for queries, Qwen3 for documents."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    key_value_heads: int | None = None
    """Of a Qwen3 model; None is as many as heads."""
    positions: int = 512
    """Longest input in tokens that the model could ever read."""
    dropout: float = 0.1
    """Of a BERT model; Qwen3 has none."""


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters instead of all weights [D.2: rank 32, alpha 64]."""

    rank: int = 32
    alpha: int = 64
    dropout: float = 0.0
    targets: str = "all-linear"


@dataclass(frozen=True, kw_only=True)
class Tower:
    """One of the two encoders."""

    base: str | None = None
    """Folder or hub name of a pretrained model. Exactly one of base, scratch and static."""
    revision: str | None = None
    scratch: Scratch | None = None
    static: int | None = None
    """Of a query encoder: no layers at all, a text is the mean of its tokens' vectors of so many dimensions. A thousand
    times cheaper than a transformer to train, and the smallest query encoder there is."""
    pooling: Literal["cls", "mean", "lasttoken"] = "cls"
    max_tokens: int = 512
    """Longest input, special tokens and prompt included [G]."""
    prompt: str = ""
    eos: str | None = None
    """Marker after each text, which last-token pooling reads [G]; None is the tokenizer's own."""
    lora: Lora | None = None
    projection: bool = False
    """Of a query encoder: a trainable linear layer up to ``dim``, as in HotelMatch. The paper's pairs have none."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokenizer that both from-scratch models share, trained on the data."""

    data: str
    """Name of the data set whose texts it is trained on."""
    kind: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    size: int = 12000
    min_frequency: int = 2
    max_piece_characters: int = 6
    """Longest piece of a Chinese text; keeps whole phrases out of the vocabulary."""
    max_texts: int = 200_000


@dataclass(frozen=True, kw_only=True)
class Diversify:
    """Which pairs are left out as near-duplicates of earlier ones [C.1, table 10]; each side on its own."""

    encoder: str = "built-in"
    """Measures the similarity: ``built-in``, a CARE folder, or any sentence-transformers model. The paper's is
    gte-multilingual-base, and the thresholds are for it: another encoder wants its own."""
    query_threshold: float = 0.85
    document_threshold: float = 0.78
    neighbours: int = 1
    """A text stays while at most so many that were kept are more similar to it than the threshold."""
    sides: Literal["both", "query", "none"] = "both"
    """Whose near-duplicates are left out; ``query`` and ``none`` keep as many pairs as ``both`` [table 11]."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """One data set: JSONL files, plain or ``.gz``.

    A row is a pair (``query`` and ``positive``, ``negatives`` optional), FlagEmbedding's shape (``query``, ``pos``,
    ``neg``), or a single ``text``.
    """

    files: tuple[str, ...]
    """Below ``data_root``."""
    weights: dict[str, float] = field(default_factory=dict)
    """Rows of a source drawn in each epoch, as a multiple of its size; 1 for a source that is not named, 0 drops it.
    Each epoch draws anew, so that a weight of 0.25 has seen every row after about four epochs."""
    licenses_excluded: tuple[str, ...] = ()
    """Rows whose ``license`` is one of these are left out."""
    max_characters: int | None = None
    """Texts are cut here before anything else reads them."""
    max_rows: int | None = None
    """Of the rows that are left, in file order."""
    diversify: Diversify | None = None
    """Of pairs: leave near-duplicates out."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A labelled retrieval set: ``corpus``, ``queries`` and ``qrels`` as ``.jsonl`` or ``.jsonl.gz`` in one folder."""

    retrieval: str
    """Folder, below ``data_root``."""
    max_queries: int | None = None
    batch_size: int = 64


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What all stages share. The defaults are those of fine-tuning in the paper [table 19]."""

    kind: StageKind
    data: str = ""
    """Name of a data set; stage ``prune`` needs none."""
    name: str = ""
    """Folder of the stage below the run's output; its kind when empty."""
    epochs: float = 1.0
    max_steps: int | None = None
    """Stops earlier than the epochs say; the schedule then ends there."""
    batch_size: int = 64
    """Rows a step and process: the number of in-batch candidates, whatever the memory holds."""
    accumulate: int = 1
    """Steps whose gradients are added up; they do not see each other's negatives."""
    learning_rate: float = 1e-4
    document_learning_rate: float | None = None
    """Of the document side in stage ``joint``; None is the same rate, as in the paper [G]."""
    warmup: float = 0.05
    """Share of the steps."""
    schedule: Schedule = "linear"
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    bf16: bool = False
    """Autocast; the loss itself is always computed in float32."""
    gradient_checkpointing: bool = False
    mini_batch_size: int = 64
    """Rows embedded at once, sorted by length so that next to no padding is computed."""
    mini_batch_tokens: int | None = None
    """Tokens embedded at once, instead of rows; what bounds the memory of one pass."""
    cached: bool = False
    """Gradient caching: memory of one mini-batch, at the price of a second forward pass."""
    max_tokens: int | None = None
    """Cuts texts shorter than the encoder would, in training only."""
    evaluate: bool = True


@dataclass(frozen=True, kw_only=True)
class RetroMae(Stage):
    """Stage ``retromae`` [D.1]: masked encoder, and a one-layer decoder that leans on the sentence vector."""

    encoder_masked: float = 0.3
    """Share of the tokens."""
    decoder_masked: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Causal(Stage):
    """Stage ``causal``: next-token warm-up of a document encoder that starts from random weights."""


@dataclass(frozen=True, kw_only=True)
class Contrastive(Stage):
    """Stages ``unsupervised``, ``supervised`` (query side) and ``document``: both texts through one encoder."""

    temperature: float = 0.02
    """Left open by the paper for all stages but ``unsupervised``, where it is learned [D.1]."""
    learn_temperature: bool = False
    hard_negatives: int = 0
    """Columns of negatives a row; a row that has fewer repeats its positive, which the masking removes."""
    margin: float | None = None
    """A candidate that scores above the positive by more than this is taken for a false negative; None is off."""
    symmetric: bool = False
    """Also document → query, averaged."""
    matryoshka: tuple[int, ...] = ()
    """Dimensions of equation (4); empty is the full dimension only."""
    token_dropout: float = 0.0
    """Share of the tokens left out of each text in training, against learning the pairs by heart."""
    crop: float = 0.0
    """Share of the pairs that are replaced by two parts of their document: a short span, and what is left."""
    query_prompt: str = ""
    """Of stage ``document``: what the document encoder reads before queries while both texts pass through it."""


@dataclass(frozen=True, kw_only=True)
class Bag(Contrastive):
    """Stage ``bag``, not in the paper: both from-scratch encoders start as one weighted bag of token vectors.

    A bag trains a thousand times faster than a transformer. Its vectors become both encoders' embeddings, their lengths
    the weights of the mean, and the layers start as the identity: training goes on from the bag, not from noise.
    """

    compose: bool = True
    """A token's vector is its own plus those of its characters, so that what is learned of 肾 is known of 肾结石."""


@dataclass(frozen=True, kw_only=True)
class Align(Stage):
    """Stage I [4.3.1]: the query encoder learns the frozen document encoder's vector of the same text."""

    temperature: float = 0.02
    """Left open by the paper."""
    contrastive_weight: float = 1.0
    """λ1 of equation (3)."""
    mse_weight: float = 1.0
    """λ2 of equation (3)."""
    kl_weight: float = 0.0
    """Of the Kullback-Leibler divergence between the two vectors, as in KALE; not part of the paper's Stage I."""
    teacher_prompt: str | None = None
    """What the document encoder reads before each text, where it was trained to read queries with a prompt of their
    own; None is its document prompt."""
    sides: tuple[Side, ...] = ("query", "document")
    """Which texts of pairs are aligned; single texts always are."""


@dataclass(frozen=True, kw_only=True)
class Joint(Contrastive):
    """Stage II [4.4]: both encoders, Asym-InfoNCE with in-batch and hard negatives."""

    freeze_document: bool = False
    """Train the query side alone: the documents of a live index keep their vectors. Without ``crop`` these are
    computed once, as in Stage I."""
    instead_of: Align | None = None
    """A Stage I that is left out, and whose cost this stage spends: a control that the paper lacks."""
    cost: Literal["texts", "operations"] = "operations"
    """What is counted of ``instead_of``: texts that pass an encoder, or floating-point operations."""


@dataclass(frozen=True, kw_only=True)
class Prune(Stage):
    """Stage ``prune`` [5.4.3]: the query encoder becomes the first layers of the document encoder. Nothing trains."""

    layers: int = 3
    """As KALE and Wang & Lyu in table 7."""


@dataclass(frozen=True, kw_only=True)
class Distill(Contrastive):
    """Stage ``distill`` [table 7]: a symmetric student learns the teacher's scores, by KL divergence and InfoNCE."""

    kl_weight: float = 1.0
    """Left open by the paper, as is the temperature, which both terms share."""
    teacher_prompt: str | None = None
    """What the document encoder reads before a query; None is its document prompt."""


STAGE_TYPES: dict[str, type[Stage]] = {
    "bag": Bag,
    "retromae": RetroMae,
    "causal": Causal,
    "unsupervised": Contrastive,
    "supervised": Contrastive,
    "document": Contrastive,
    "align": Align,
    "joint": Joint,
    "prune": Prune,
    "distill": Distill,
}


@dataclass(frozen=True, kw_only=True)
class Export:
    """How the CARE folder is written."""

    half_weights: bool = False
    """Store float16 (half the size; loads as float32). A static encoder, which could not say so, stays as it is."""
    fp32_onnx: bool = True
    """Keep the float32 graph beside the int8 one; without it the folder is four bytes a query parameter smaller."""
    probe: str | None = None
    """Name of a data set whose queries gate the int8 query encoder; None takes the last stage's."""
    probe_texts: int = 256
    license: str = ""
    """SPDX identifier of the weights."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A whole run."""

    name: str
    output: str
    """Folder; every stage writes one below it, and the export ``output/name``."""
    dim: int
    """Of the space that both encoders share."""
    query: Tower
    document: Tower
    data: dict[str, Data]
    stage: tuple[Stage, ...] = ()
    """In order; without any, a run writes the base models and nothing else."""
    data_root: str = "."
    symmetric: Side | None = None
    """Use this side's encoder on both sides: the models of table 4 that the pair is compared with."""
    seed: int = 0
    checkpoint_minutes: float = 5.0
    """Between two checkpoints of a stage; 0 is after every step."""
    teacher_cache: str | None = None
    """Folder of document vectors that runs share: each text is encoded once by the same encoder."""
    report_to: tuple[Tracker, ...] = ()
    """Trackers of transformers beside metrics.jsonl: tensorboard, trackio, wandb."""
    vocabulary: Vocabulary | None = None
    evaluation: Evaluation | None = None
    export: Export = field(default_factory=Export)
