"""Stages ``unsupervised`` and ``supervised`` (query encoder) and ``document``: InfoNCE through one encoder."""

from care_trainer.config import Contrastive, Geometry, Side
from care_trainer.config.stages import PairStage
from care_trainer.data.collators import PairCollator
from care_trainer.losses.embedding import embedding_loss
from care_trainer.losses.objectives import InfoNce, Matryoshka, PairObjective
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
    info_nce = info_nce_of(stage)  # one encoder on both sides: unit vectors, whatever the pair's geometry
    objective = pair_objective(stage, info_nce)
    loss = embedding_loss(model, Matryoshka(objective, stage.matryoshka) if stage.matryoshka else objective, stage)
    rows = context.pair_rows()
    documents = ("positive", *(f"negative_{number}" for number in range(1, stage.hard_negatives + 1)))
    prompts = {"query": stage.query_prompt if side == "document" else context.run.query.prompt}
    if side in ("document", context.run.symmetric):
        prompts |= dict.fromkeys(documents, context.run.document.prompt)
    options = context.collating(stage.hard_negatives)
    collator = PairCollator(stage.crop, preprocess_fn=model.preprocess, prompts=prompts, **options)
    metrics = fit(
        model, loss, rows.columns, context.job(rows, collator=collator, score=context.scoring(lambda: encoder))
    )
    query, document = (encoder, None) if side == "query" else (None, encoder)
    return Trained(query, document, {side: trainable}, metrics, info_nce.temperature, encoder)


def pair_objective(stage: PairStage, info_nce: InfoNce) -> PairObjective:
    """Return the objective of a stage's pairs, with a score or without."""
    return PairObjective(info_nce, score_temperature=stage.score_temperature)


def info_nce_of(stage: PairStage, geometry: Geometry = "unit") -> InfoNce:
    """Return the contrastive objective that a stage's settings describe."""
    return InfoNce(
        stage.temperature,
        learn=stage.learn_temperature,
        margin=stage.margin,
        symmetric=stage.symmetric,
        gather=True,
        geometry=geometry,
    )
