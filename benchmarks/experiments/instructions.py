"""The paper's instructions per task (table 8), on either side of a pair.

The paper prints the sentences, but neither the words around them nor whether the small query encoder saw them. So the
side and the template are options.
"""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Formatter
from typing import Literal

import click
from care_benchmarks.measures import Kind
from care_benchmarks.run import RunSettings, run
from care_benchmarks.systems import EvaluatedSystem, load_systems
from care_benchmarks.tasks import KINDS, directory_tasks

from care_qdrant.encoders import Encoder
from care_qdrant.errors import InputError
from care_qdrant.model.pair import CareModel
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Vectors

Side = Literal["query", "document"]

RANK = (
    "Based on a Chinese medical question, evaluate and rank the medical information that provide answers to the "
    "question."
)
TABLE_8: dict[Kind, str] = {
    "retrieval": "Given a Chinese medical question, retrieve medical documents that answer the question.",
    "rerank": RANK,
    "sts": "Retrieve semantically similar text.",
}
"""Table 8 of the paper, verbatim. The two CMedQA tasks use the sentence of ``rerank``."""

QWEN3_TEMPLATE = "Instruct: {instruction}\nQuery:"
"""Template of the Qwen3 embedding models."""


@dataclass(frozen=True, slots=True)
class Instructions:
    """The sides of a pair that receive the paper's instruction before each text."""

    query: bool = False
    document: bool = False
    template: str = QWEN3_TEMPLATE
    """Text with ``{instruction}`` in the place of the sentence."""

    def __post_init__(self) -> None:
        """Check the template."""
        fields = {name for _, name, _, _ in Formatter().parse(self.template) if name is not None}
        if fields != {"instruction"}:
            raise InputError(
                f"instruction template {self.template!r} must have {{instruction}} in it, and no other braces"
            )

    def prompt(self, kind: Kind, side: Side) -> str | None:
        """Return the prompt of one side; None keeps the model's own prompt."""
        wanted = self.query if side == "query" else self.document
        return self.template.format(instruction=TABLE_8[kind]) if wanted else None


class InstructedEncoder:
    """An encoder with another prompt."""

    def __init__(self, inner: Encoder, prompt: str) -> None:
        self._inner, self.prompt = inner, prompt
        self.dim, self.max_tokens = inner.dim, inner.max_tokens

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Return one unit vector per text: (len(texts), dim)."""
        return self._inner.encode(texts, prompt=self.prompt if prompt is None else prompt)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the uncut length of each text in tokens, prompt included."""
        return self._inner.count_tokens([self.prompt + text for text in texts])


def with_instructions(model: CareModel, instructions: Instructions, kind: Kind) -> CareModel:
    """Return the pair with the instructions of one kind of task, or the pair itself if there are none.

    A document instruction changes the fingerprint, so that instructed documents have collections of their own.
    """
    query, document = instructions.prompt(kind, "query"), instructions.prompt(kind, "document")
    if query is None and document is None:
        return model
    fingerprint = model.fingerprint
    if document is not None:
        fingerprint = hashlib.sha256(f"{fingerprint}\x1f{document}".encode()).hexdigest()
    return CareModel(
        name=model.name,
        dim=model.dim,
        fingerprint=fingerprint,
        temperature=model.temperature,
        load_query_encoder=lambda: _instructed(model.query_encoder, query),
        load_document_encoder=lambda: _instructed(model.document_encoder, document),
        load_document_tokenizer=(lambda: model.document_tokenizer) if document is None else None,
        card=model.card,
    )


def _instructed(encoder: Encoder, prompt: str | None) -> Encoder:
    return encoder if prompt is None else InstructedEncoder(encoder, prompt)


@click.command()
@click.argument("task", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--model", default="built-in", show_default=True, help="A pair, as in care-bench run.")
@click.option(
    "--side",
    type=click.Choice(["query", "document", "both"]),
    default="both",
    show_default=True,
    help="Side that receives the instruction.",
)
@click.option("--template", default=QWEN3_TEMPLATE, show_default=True, help="Text with {instruction} in it.")
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the results."
)
def main(task: Path, model: str, side: str, template: str, output: Path) -> None:
    """Evaluate a pair with instructions on the directory TASK; each kind of task has its own sentence and result.

    \b
    Example:
      python -m benchmarks.experiments.instructions examples/sample --side document --output results/instructed
    """
    instructions = Instructions(side in ("query", "both"), side in ("document", "both"), template)
    [system] = load_systems([model], [])
    tasks = directory_tasks(task)
    with open_client(path=output / "qdrant") as client:
        for kind in dict.fromkeys(KINDS[str(each.metadata.type)] for each in tasks):
            own = [each for each in tasks if KINDS[str(each.metadata.type)] == kind]
            instructed: EvaluatedSystem = replace(system, model=with_instructions(system.model, instructions, kind))
            # LlamaIndex would load the model again, without the instruction.
            settings = RunSettings(through="core", speed=None)
            command = " ".join(["python -m benchmarks.experiments.instructions", *sys.argv[1:]])
            result = run(task.name, [instructed], own, client, output / kind, settings=settings, command=command)
            for score in result.systems[0].scores:
                click.echo(f"{score.task}: {score.value:.4f}")


if __name__ == "__main__":
    main()
