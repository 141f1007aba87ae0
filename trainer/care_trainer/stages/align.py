"""Stage ``align`` (Stage I): the query encoder learns to give the frozen document encoder's vector of the same text."""

from collections.abc import Sequence
from pathlib import Path

from care_trainer import towers
from care_trainer.config import Align
from care_trainer.fitting import fit
from care_trainer.objectives import AlignObjective, InfoNce
from care_trainer.stages.context import Context, Trained
from care_trainer.stages.embedding import embedding_loss
from care_trainer.teacher import TeacherCollator, teacher_vectors
from care_trainer.vectors import Half


def train_align(context: Context) -> Trained:
    """Align the query encoder [4.3.1, equation (3)]; the teacher's vectors are computed once."""
    stage = context.stage
    assert isinstance(stage, Align)
    rows = context.text_rows(stage.sides)
    vectors = stored_vectors(context, rows.columns["text"], prompt=stage.teacher_prompt)
    query = towers.load(context.query)
    trainable = towers.make_trainable(query, side="query", lora=context.run.query.lora is not None)
    objective = AlignObjective(
        InfoNce(stage.temperature, gather=True),
        contrastive_weight=stage.contrastive_weight,
        mse_weight=stage.mse_weight,
        kl_weight=stage.kl_weight,
    )
    loss = embedding_loss(query, objective, stage)
    prompts = {"text": context.run.query.prompt}
    collator = TeacherCollator(vectors, preprocess_fn=query.preprocess, prompts=prompts, max_length=stage.max_tokens)
    job = context.job(weights=rows.weights, collator=collator)
    metrics = fit(query, loss, rows.columns, job)
    document = towers.load(context.document)
    return Trained(query, None, {"query": trainable}, metrics, stage.temperature, towers.pair(query, document))


def stored_vectors(context: Context, texts: Sequence[str], column: str = "text", *, prompt: str | None = None) -> Half:
    """Give the newest document encoder's vectors of texts, (len(texts), dim), computed once and kept for a resume.

    Args:
        context: Of the stage.
        texts: In the order of the rows.
        column: Of the rows.
        prompt: Instead of the document prompt.
    """
    done = 0

    def report(rows: int) -> None:
        nonlocal done
        done = min(done + rows, len(texts))
        context.report(f"teacher {column}", done, len(texts), float("nan"))

    return teacher_vectors(
        lambda: towers.load(context.document),
        context.document,
        texts,
        context.folder / "teacher" / column,
        dim=context.run.dim,
        prompt=prompt,
        cache=Path(context.run.teacher_cache) if context.run.teacher_cache else None,
        report=report,
    )
