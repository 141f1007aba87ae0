"""The report of a verification, and the limits within which a vector counts as correct."""

from dataclasses import dataclass, field

from care_qdrant.errors import InputError
from care_qdrant.ingestion.settings import require_fraction
from care_qdrant.qdrant.readable import PointId
from care_qdrant.search.tuning import Rescoring


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """Limits within which a vector counts as correct."""

    sample: int = 64
    """Number of points to encode again."""
    least_cosine: float | None = None
    """Least cosine between a stored vector and the re-encoded one. None allows for the rounding of the model's vectors:
    0.999, and less where a graph of its document encoder computes in 8 bits."""
    least_known: float = 0.5
    """Least fraction of sampled documents that searches by their own openings must find among the first ten hits."""

    def __post_init__(self) -> None:
        if self.sample < 0:
            raise InputError(f"sample is {self.sample}; expected 0 points or more")
        if self.least_cosine is not None and not -1 <= self.least_cosine <= 1:
            raise InputError(f"least_cosine is {self.least_cosine}; expected a cosine from -1 to 1")
        require_fraction("least_known", self.least_known)


@dataclass(slots=True)
class VerifyReport:
    """Findings of a verification."""

    collection: str
    vector_name: str
    fingerprint: str
    is_attached: bool = True
    """Whether ``care attach`` made the vector; otherwise ingestion or LlamaIndex did."""
    points: int = 0
    with_text: int = 0
    covered: int = 0
    """Number of points that have the vector, counted by Qdrant."""
    without_vector: int = 0
    """Points that have a text and lack the vector. For a vector that ``care attach`` made, `without_hash` is included,
    since any program may have written those points; for other vectors, those are sampled."""
    without_hash: int = 0
    """Points with a text and the vector, but without the hash of the text from which it was made."""
    outdated: int = 0
    """Points that have the vector, and whose text has changed since it was made."""
    text_gone: int = 0
    """Points that have the vector and no longer a text."""
    stand_ins: int = 0
    """Points whose vector a learned query encoder made in place of the vector's model."""
    written_by_others: int = 0
    """Points that have the vector without a text, and without the hash of one: another program wrote it."""
    unreadable: list[PointId] = field(default_factory=list)
    """Ids of the first points whose text the encoder cannot read: with half a surrogate pair, for example, or without
    a token of the model, if that was given."""
    in_other_field: int = 0
    """Points without a text in the field from which the vector is made that have one in another field."""
    sampled: int = 0
    """Points that were re-encoded; 0 if a model other than the given one made the vector."""
    lowest_cosine: float | None = None
    known_items: float | None = field(default=None, metadata={"unit": "fraction"})
    """Fraction of the sample that searches by the texts' own openings found, from 0 to 1."""
    recall_at_10: float | None = field(default=None, metadata={"unit": "fraction"})
    """Fraction of the ten exact neighbours of sampled stored vectors that a search by the graph finds; None where there
    is no graph, in the embedded database, and where a server refuses exact searches."""
    rescoring: Rescoring | None = None
    """Quality of searches of a quantised vector by the query encoder, with the recorded oversampling, or with the
    least one that is enough."""
    problems: list[str] = field(default_factory=list)
    """Faults that were found, including those of `others`; empty where there are none."""
    others: "list[VerifyReport]" = field(default_factory=list)
    """Reports of the other vectors that this package made; empty where one vector was requested."""
