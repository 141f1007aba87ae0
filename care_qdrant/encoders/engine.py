"""Settings of the document encoder, which every command that encodes documents shares."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from care_qdrant.errors import InputError, require_choice
from care_qdrant.patience import PATIENCE_SECONDS

Kind = Literal["torch", "onnx", "server"]
Dtype = Literal["auto", "float32", "bfloat16"]
"""Type of torch weights; ``auto`` is float32 on a CPU, else bfloat16."""
Sent = Literal["tokens", "text", "text-without-prompt"]
"""Input of a server: token ids; prompt and text; or the text alone, where the server adds its own prompt."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The program that encodes documents, and where it runs."""

    kind: Kind | None = None
    """Program that encodes; None takes onnx where the model has such an encoder and no device is named, else torch."""
    dtype: Dtype = "auto"
    endpoints: tuple[str, ...] = ()
    """Base URLs of servers, such as ``http://localhost:8000/v1``, which have the route ``embeddings``."""
    served_model: str | None = None
    """Name of the model on the servers; None takes the model's name."""
    sent: Sent = "tokens"
    request_tokens: int = 16_384
    """Most tokens of a request, which has two minutes: fewer for a server on a CPU."""
    reference: str | Path | None = None
    """File of vectors that servers have to reproduce; None takes the references of the card, else makes them here."""
    api_key: str | None = field(default=None, repr=False)
    """Bearer token of the servers."""
    patience_seconds: float = PATIENCE_SECONDS
    """Longest time without an answer of any server, once one has answered; before that, `START_PATIENCE_SECONDS`."""

    def __post_init__(self) -> None:
        require_choice("kind of Engine", self.kind, (*get_args(Kind), None))
        require_choice("dtype of Engine", self.dtype, get_args(Dtype))
        require_choice("sent of Engine", self.sent, get_args(Sent))
        if (self.kind == "server") != bool(self.endpoints):
            raise InputError(
                "Engine: kind 'server' needs endpoints, such as ('http://localhost:8000/v1',)"
                if self.kind == "server"
                else f"Engine: endpoints, such as {self.endpoints[0]}, need kind 'server', not {self.kind!r}"
            )


LOCAL = Engine()
