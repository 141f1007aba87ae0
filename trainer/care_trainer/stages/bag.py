"""Stage ``bag``: both from-scratch encoders start as one bag of token vectors, trained in minutes."""

from itertools import chain

from care_trainer import towers
from care_trainer.augment import PairCollator
from care_trainer.bag import BagLoss, Parts, bag_table, random_bag, start_from_bag
from care_trainer.config import Bag
from care_trainer.fitting import fit
from care_trainer.stages.context import Context, Trained
from care_trainer.stages.contrastive import info_nce_of


def train_bag(context: Context) -> Trained:
    """Train the bag on pairs, and let both encoders start as it."""
    stage = context.stage
    assert isinstance(stage, Bag)
    query, document = towers.load(context.query), towers.load(context.document)
    rows = context.pair_rows(stage.hard_negatives)
    bag = random_bag(
        query.tokenizer.backend_tokenizer,
        context.run.dim,
        chain(rows.columns["query"], rows.columns["positive"]),
        stage.max_tokens or context.run.document.max_tokens,
    )
    trainable = towers.make_trainable(bag, side="bag", lora=False)
    info_nce = info_nce_of(stage)
    job = context.job(
        weights=rows.weights,
        collator=PairCollator(stage.crop, preprocess_fn=bag.preprocess),
    )
    parts = Parts(bag.tokenizer, stage.compose)
    loss = BagLoss(bag, info_nce, parts, stage.token_dropout)
    metrics = fit(bag, loss, rows.text_columns(), job)
    table = parts.fold(bag_table(bag))
    query, document = start_from_bag(query, table), start_from_bag(document, table)
    joined = towers.pair(query, document)
    return Trained(query, document, {"bag": trainable}, metrics, info_nce.temperature, joined)
