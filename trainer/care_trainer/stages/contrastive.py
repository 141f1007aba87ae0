"""Stages ``unsupervised`` and ``supervised`` (query encoder) and ``document``: InfoNCE through one encoder."""

from care_trainer.config import Contrastive, Side
from care_trainer.losses.embedding import embedding_loss
from care_trainer.losses.objectives import Matryoshka, pair_objective
from care_trainer.models import towers
from care_trainer.stages.context import Context, Trained
from care_trainer.training.loop import fit


def train_query(context: Context) -> Trained:
    """Train the query encoder symmetrically: both texts of a pair go through it [D.1]."""
    return _train(context, "query")


def train_document(context: Context) -> Trained:
    """Train the document encoder symmetrically, with nested dimensions [D.2, equation (4)]."""
    return _train(context, "document")


def _train(context: Context, side: Side) -> Trained:
    stage = context.stage
    assert isinstance(stage, Contrastive)
    encoder, trainable = context.load_trainable(side)
    # Nested dimensions are taken of the whole vector: the slice to the query dimension is the smallest of them.
    model = towers.unsliced(encoder) if stage.matryoshka else encoder
    objective = pair_objective(stage)  # one encoder on both sides: unit vectors, regardless of the pair's geometry
    loss = embedding_loss(model, Matryoshka(objective, stage.matryoshka) if stage.matryoshka else objective, stage)
    rows = context.rows()
    documents = ("positive", *(f"negative_{number}" for number in range(1, stage.hard_negatives + 1)))
    prompts = {"query": stage.query_prompt if side == "document" else context.run.query.prompt}
    if side in ("document", context.run.symmetric):
        prompts |= dict.fromkeys(documents, context.run.document.prompt)
    collator = context.pair_collator(model, prompts)
    metrics = fit(context, model, loss, rows, collator, score=context.scoring(lambda: encoder))
    query, document = (encoder, None) if side == "query" else (None, encoder)
    return Trained(query, document, {side: trainable}, metrics, objective.contrastive.temperature, encoder)
