"""Stage ``align`` (Stage I): the query encoder learns the frozen document encoder's vector of the same text."""

from care_trainer.config import Align
from care_trainer.losses.objectives import AlignObjective, InfoNce
from care_trainer.models import towers
from care_trainer.stages.context import Context, Trained, train_student


def train_align(context: Context) -> Trained:
    """Align the query encoder [4.3.1, equation (3)]; the teacher's vectors are computed once."""
    stage = context.stage
    assert isinstance(stage, Align)
    objective = AlignObjective(
        InfoNce(stage.temperature, gather=True, geometry=context.run.geometry),
        contrastive_weight=stage.contrastive_weight,
        mse_weight=stage.mse_weight,
        kl_weight=stage.kl_weight,
    )
    if stage.pairs:
        rows = context.pair_rows()
        query, trainable, metrics = train_student(
            context, objective, rows, ["query"], documents=context.stored_documents(rows)
        )
    else:
        rows = context.text_rows(stage.sides)
        vectors = context.stored_vectors(rows.columns["text"], "text", prompt=stage.teacher_prompt)
        query, trainable, metrics = train_student(context, objective, rows, ["text"], vectors)
    joined = towers.pair(query, context.load("document"))
    return Trained(query, None, trainable, metrics, stage.temperature, joined)
