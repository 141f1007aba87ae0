"""Stages ``unsupervised`` and ``supervised`` (query encoder) and ``document``: InfoNCE through one encoder."""

from care_trainer.config import Contrastive, Side
from care_trainer.config.stages import PairStage
from care_trainer.data.collators import PairCollator
from care_trainer.losses.embedding import embedding_loss
from care_trainer.losses.objectives import InfoNce, Matryoshka
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
    info_nce = info_nce_of(stage)
    loss = embedding_loss(model, Matryoshka(info_nce, stage.matryoshka) if stage.matryoshka else info_nce, stage)
    rows = context.pair_rows(stage.hard_negatives)
    columns = rows.text_columns()
    prompts = {"query": context.run.query.prompt}
    if side == "document":
        prompts = dict.fromkeys(columns.column_names, context.run.document.prompt) | {"query": stage.query_prompt}
    collator = PairCollator(stage.crop, preprocess_fn=model.preprocess, prompts=prompts, max_length=stage.max_tokens)
    metrics = fit(model, loss, columns, context.job(weights=rows.weights, collator=collator))
    query, document = (encoder, None) if side == "query" else (None, encoder)
    return Trained(query, document, {side: trainable}, metrics, info_nce.temperature, encoder)


def info_nce_of(stage: PairStage) -> InfoNce:
    """Return the objective that a stage's settings describe."""
    return InfoNce(
        stage.temperature,
        learn=stage.learn_temperature,
        margin=stage.margin,
        symmetric=stage.symmetric,
        gather=True,
    )
