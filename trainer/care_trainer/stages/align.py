"""Stage ``align`` (Stage I): the query encoder learns to give the frozen document encoder's vector of the same text."""

from collections.abc import Sequence

from care_trainer import towers
from care_trainer.config import Align
from care_trainer.fitting import fit
from care_trainer.losses import EmbeddingLoss
from care_trainer.objectives import AlignObjective, InfoNce
from care_trainer.stages.context import Context, Trained
from care_trainer.teacher import Half, TeacherCollator, teacher_vectors


def train_align(context: Context) -> Trained:
    """Align the query encoder [4.3.1, equation (3)]; the teacher's vectors are computed once."""
    stage = context.stage
    assert isinstance(stage, Align)
    rows = context.text_rows(stage.sides)
    vectors = stored_vectors(context, rows.columns["text"])
    query = towers.load(context.query)
    trainable = towers.make_trainable(query, side="query", lora=context.run.query.lora is not None)
    objective = AlignObjective(
        InfoNce(stage.temperature, gather=True),
        contrastive_weight=stage.contrastive_weight,
        mse_weight=stage.mse_weight,
        kl_weight=stage.kl_weight,
    )
    loss = EmbeddingLoss(
        query,
        objective,
        mini_batch_size=stage.mini_batch_size,
        mini_batch_tokens=stage.mini_batch_tokens,
        cached=stage.cached,
    )
    prompts = {"text": context.run.query.prompt}
    collator = TeacherCollator(vectors, preprocess_fn=query.preprocess, prompts=prompts, max_length=stage.max_tokens)
    job = context.job(weights=rows.weights, collator=collator)
    metrics = fit(query, loss, rows.columns, job)
    document = towers.load(context.document)
    return Trained(query, None, {"query": trainable}, metrics, stage.temperature, towers.pair(query, document))


def stored_vectors(context: Context, texts: Sequence[str], column: str = "text") -> Half:
    """Give the newest document encoder's vectors of texts, (len(texts), dim), computed once and kept for a resume."""
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
        report=report,
    )
