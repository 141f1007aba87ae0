"""Stages ``unsupervised`` and ``supervised`` (query encoder) and ``document``: InfoNCE through one encoder."""

from collections.abc import Sequence

from datasets import Dataset

from care_trainer import towers
from care_trainer.augment import PairCollator
from care_trainer.config import Contrastive
from care_trainer.data import Pair, read_pairs, row_weights
from care_trainer.fitting import fit
from care_trainer.losses import EmbeddingLoss
from care_trainer.objectives import InfoNce, Matryoshka
from care_trainer.stages.context import Context, Trained


def train_query(context: Context) -> Trained:
    """Train the query encoder symmetrically: both texts of a pair go through it [D.1]."""
    return _train(context, "query")


def train_document(context: Context) -> Trained:
    """Train the document encoder symmetrically, with nested dimensions [D.2, equation (4)]."""
    return _train(context, "document")


def _train(context: Context, side: str) -> Trained:
    stage = context.stage
    assert isinstance(stage, Contrastive)
    tower = context.run.query if side == "query" else context.run.document
    encoder = towers.load(context.query if side == "query" else context.document)
    trainable = towers.make_trainable(encoder, side=side, lora=tower.lora is not None)
    # Nested dimensions are taken of the whole vector: the slice to the query dimension is the smallest of them.
    model = towers.unsliced(encoder) if stage.matryoshka else encoder
    info_nce = info_nce_of(stage)
    loss = EmbeddingLoss(
        model,
        Matryoshka(info_nce, stage.matryoshka) if stage.matryoshka else info_nce,
        mini_batch_size=stage.mini_batch_size,
        mini_batch_tokens=stage.mini_batch_tokens,
        cached=stage.cached,
        token_dropout=stage.token_dropout,
    )
    pairs = read_pairs(context.data, context.data_root)
    rows = pair_rows(pairs, stage.hard_negatives)
    prompts = {"query": tower.prompt} if side == "query" else {"positive": tower.prompt}
    collator = PairCollator(stage.crop, preprocess_fn=model.preprocess, prompts=prompts, max_length=stage.max_tokens)
    job = context.job(weights=row_weights(pairs, context.data), collator=collator)
    metrics = fit(model, loss, rows, job)
    query, document = (encoder, None) if side == "query" else (None, encoder)
    return Trained(query, document, {side: trainable}, metrics, info_nce.temperature, encoder)


def info_nce_of(stage: Contrastive) -> InfoNce:
    """Give the objective that a stage's settings describe."""
    return InfoNce(
        stage.temperature,
        learn=stage.learn_temperature,
        margin=stage.margin,
        symmetric=stage.symmetric,
        gather=True,
    )


def pair_rows(pairs: Sequence[Pair], hard_negatives: int) -> Dataset:
    """Give the columns query, positive, negative_1…; a row with too few negatives repeats its positive.

    The repeated positive is masked like any candidate whose text is the positive's, and so adds nothing.
    """
    columns: dict[str, list[str]] = {
        "query": [pair.query for pair in pairs],
        "positive": [pair.positive for pair in pairs],
    }
    for number in range(hard_negatives):
        columns[f"negative_{number + 1}"] = [
            pair.negatives[number] if number < len(pair.negatives) else pair.positive for pair in pairs
        ]
    return Dataset.from_dict(columns)
