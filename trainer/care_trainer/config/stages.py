"""The settings of each kind of stage. Sections, tables and equations refer to arXiv 2604.10937."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from care_qdrant.errors import InputError

DEFAULT_BATCH_SIZE = 64
"""Rows per step and process of a stage that sets neither ``batch_size`` nor ``global_batch_size``."""

StageKind = Literal["static", "retromae", "unsupervised", "supervised", "document", "align", "joint", "prune"]

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Unknown keys are refused, and no value is converted to another type."""

Side = Literal["query", "document"]
Geometry = Literal["unit", "cut"]
"""Document vectors of unit length, or normalised at full width, cut, and not normalised again."""
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
PositiveOrZero = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
"""A part of a whole, from 0 to below 1."""
Share = Annotated[float, Field(ge=0, le=1)]
"""A part of a whole, from 0 to 1, both included."""
Threshold = Annotated[float, Field(ge=-1, le=2)]
"""A cosine; above 1 no two texts are similar."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Stage:
    """The settings that all stages share. The defaults are the fine-tuning settings of table 19."""

    kind: StageKind
    """Kind of the stage."""
    data: str = ""
    """Name of the data set. Every stage but ``prune`` needs one."""
    name: str = ""
    """Name of the stage's folder below the run's output. Empty means the kind."""
    epochs: Positive = 1.0
    """Passes over the data set [tables 19, 20]."""
    max_steps: Count | None = None
    """Highest number of optimizer steps; the schedule ends there as well. None means as many as ``epochs`` takes."""
    batch_size: Count | None = None
    """Rows per step and process. It sets the number of in-batch candidates, and does not depend on the memory. None
    means 64, or the share of ``global_batch_size`` of one process."""
    global_batch_size: Count | None = None
    """Rows per step over all processes and ``accumulate``, instead of ``batch_size``: any number of processes that
    divides it gives the same training [tables 19, 20]. None is off."""
    accumulate: Count = 1
    """Steps whose gradients are added before one optimizer step. They do not share their negatives."""
    batch_by_source: bool = False
    """Take the rows of a step, on all processes, from one source. The published script does so."""
    learning_rate: Positive = 1e-4
    """Peak learning rate of AdamW [tables 19, 20]."""
    document_learning_rate: PositiveOrZero | None = None
    """Peak learning rate of the document side in stage ``joint`` [G: the same]. None means ``learning_rate``."""
    warmup: Fraction = 0.05
    """Fraction of the steps in which the learning rate rises to its peak [tables 19, 20]."""
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    """Shape of the learning rate after the warm-up [tables 19, 20]."""
    weight_decay: PositiveOrZero = 0.01
    """Weight decay of AdamW [open]."""
    max_grad_norm: PositiveOrZero = 1.0
    """Norm to which gradients are clipped [open]. 0 turns clipping off."""
    bf16: bool = False
    """Compute the forward pass under bfloat16 autocast, and the vectors of a frozen document encoder in bfloat16 [G].
    The loss is always computed in float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory for one more forward pass. With ``cached`` on a GPU,
    only if the activations of a mini-batch do not fit; the log says so."""
    mini_batch_size: Count = 64
    """Number of rows encoded at once, sorted by length to save padding."""
    mini_batch_tokens: Count | None = None
    """Number of tokens encoded at once, with padding, instead of ``mini_batch_size`` rows. It bounds the memory of one
    pass. None is off."""
    cached: bool = False
    """Use gradient caching: memory of one mini-batch for a second forward pass."""
    max_tokens: Count | None = None
    """Length in tokens to which training cuts a text. None means the encoder's own limit."""
    evaluate: bool = True
    """Score the encoders on ``[evaluation]`` when the stage ends."""
    evaluate_steps: Count | None = None
    """Steps between two scores on ``[evaluation]`` during training; the stage ends with the weights of the best one.
    None is off. Only for stages on pairs and Stage I."""
    patience: Count | None = None
    """Number of scores in a row without an improvement after which the stage ends early. None trains to the end."""

    def rows_of_process(self, processes: int) -> int:
        """Return the rows of one process in a step before accumulation."""
        if self.global_batch_size is None:
            return self.batch_size or DEFAULT_BATCH_SIZE
        rows, rest = divmod(self.global_batch_size, processes * self.accumulate)
        if rest or not rows:
            raise InputError(
                f"stage {stage_name(self)}: global_batch_size {self.global_batch_size} cannot be kept by {processes} "
                f"processes with accumulate = {self.accumulate}; expected a multiple of {processes * self.accumulate}"
            )
        return rows


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RetroMae(Stage):
    """Stage ``retromae`` [D.1]: masked language modelling with a one-layer decoder that reads the sentence vector."""

    kind: Literal["retromae"]
    joined: bool = False
    """Train on each pair as one text, title and content, instead of on its texts one by one [D.1; open]."""
    encoder_masked: Fraction = 0.3
    """Fraction of the tokens that the encoder does not see. RetroMAE's own value."""
    decoder_masked: Fraction = 0.5
    """Fraction of the tokens that each decoder position does not see. RetroMAE's own value."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PairStage(Stage):
    """The settings of all stages that train with InfoNCE on pairs."""

    temperature: Positive = 0.02
    """Temperature τ of InfoNCE. Open in the paper; learned in stage ``unsupervised`` [D.1]."""
    learn_temperature: bool = False
    """Train the temperature, starting from ``temperature`` [D.1]."""
    hard_negatives: CountOrZero = 0
    """Hard negatives per row, newly drawn in each epoch [open]. A row with fewer repeats its positive, which the
    masking removes."""
    margin: PositiveOrZero | None = None
    """Cosine by which a candidate may exceed the positive before it counts as a false negative [open]. None is off."""
    symmetric: bool = False
    """Average the loss with the direction document → query."""
    matryoshka: tuple[Count, ...] = ()
    """Nested dimensions of equation (4) [D.2, eq. 4; the set is open]. It must contain the run's ``dim``; empty
    means only that dimension."""
    token_dropout: Fraction = 0.0
    """Fraction of the tokens left out of each text in training."""
    crop: Share = 0.0
    """Fraction of the pairs replaced by a short span of their document and the rest of it."""
    score_temperature: Positive = 0.05
    """Temperature of CoSENT, the loss of pairs with a score (``sentence1``, ``sentence2``, ``score``) [open]."""
    query_prompt: str = ""
    """Prompt of queries in stage ``document``, where the document encoder reads both texts [open]."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Contrastive(PairStage):
    """Stages ``unsupervised``, ``supervised`` (query encoder) and ``document``: both texts through one encoder."""

    kind: Literal["unsupervised", "supervised", "document"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Static(PairStage):
    """Stage ``static``, not in the paper: a static embedding table from which both encoders start.

    A table trains a thousand times faster than a transformer. Its vectors become the token embeddings of both
    from-scratch encoders, their norms the weights of mean pooling, and the layers start as the identity.
    """

    kind: Literal["static"]
    compose: bool = True
    """Add the vectors of a token's characters to its own, so that 肾结石 shares what is learned about 肾."""
    lead_tokens: Count | None = None
    """Position at which a token of a document counts half as much as the first one: weights of 1 / (1 + position /
    lead_tokens), which the position embeddings of a BERT document encoder begin with. None counts all tokens alike."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Align(Stage):
    """Stage I [4.3.1]: the query encoder learns the frozen document encoder's vector of the same text."""

    kind: Literal["align"]
    temperature: Positive = 0.02
    """Temperature τ of equation (1). Open in the paper."""
    contrastive_weight: PositiveOrZero = 1.0
    """Weight λ1 of the contrastive term in equation (3)."""
    mse_weight: PositiveOrZero = 1.0
    """Weight λ2 of the squared distance in equation (3)."""
    negatives: CountOrZero = 0
    """Teacher vectors of other texts, drawn at random in each step, that serve as negatives in addition to the batch.
    Not part of the paper's Stage I."""
    token_dropout: Fraction = 0.0
    """Fraction of the tokens left out of each text in training. Not part of the paper's Stage I."""
    teacher_prompt: str | None = None
    """Prompt of the document encoder for each text [open]. None means its document prompt."""
    pairs: bool = False
    """Learn the vector of a query's document instead of the text's own: the fine-tuning data of table 6."""
    sides: Annotated[tuple[Side, ...], Field(min_length=1)] = ("query", "document")
    """Sides of pairs whose texts are aligned [4.1, table 6]. Single texts always are."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Joint(PairStage):
    """Stage II [4.4]: both encoders, Asym-InfoNCE with in-batch and hard negatives."""

    kind: Literal["joint"]
    freeze_document: bool = False
    """Train the query encoder alone, so that the vectors of a live index stay valid."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Prune(Stage):
    """Stage ``prune`` [5.4.3]: the query encoder becomes the first layers of the document encoder. Nothing trains."""

    kind: Literal["prune"]
    layers: Count = 3
    """Number of layers to keep: three in the comparisons of table 7."""


AnyStage = Annotated[RetroMae | Contrastive | Static | Align | Joint | Prune, Field(discriminator="kind")]

STAGE_TYPES: dict[str, type[Stage]] = {
    "static": Static,
    "retromae": RetroMae,
    "unsupervised": Contrastive,
    "supervised": Contrastive,
    "document": Contrastive,
    "align": Align,
    "joint": Joint,
    "prune": Prune,
}


def stage_name(stage: Stage) -> str:
    """Return the folder name of a stage: its ``name``, or its kind."""
    return stage.name or stage.kind
