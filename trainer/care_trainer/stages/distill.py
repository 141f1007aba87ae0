"""Stage ``distill``: a symmetric student learns the document encoder's scores (baseline of table 7)."""

from care_trainer.config import Distill
from care_trainer.losses.objectives import DistillObjective
from care_trainer.stages.context import Context, Trained, train_student
from care_trainer.stages.contrastive import info_nce_of


def train_distill(context: Context) -> Trained:
    """Train the query encoder on both sides of pairs, with the frozen document encoder's scores as a second target."""
    stage = context.stage
    assert isinstance(stage, Distill)
    rows, negatives = context.pair_rows(), stage.hard_negatives
    queries = context.stored_vectors(rows.columns["query"], "query", prompt=stage.teacher_prompt)
    documents = context.stored_documents(rows)
    objective = DistillObjective(info_nce_of(stage, context.run.geometry), kl_weight=stage.kl_weight)
    columns = ["query", "positive", "negatives"]
    query, trainable, metrics = train_student(
        context, objective, rows, columns, queries, documents=documents, negatives=negatives
    )
    return Trained(query, None, trainable, metrics, stage.temperature, query)
