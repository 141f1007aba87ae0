"""Stage ``bag``: both from-scratch encoders start as one bag of token vectors, trained in minutes."""

from care_trainer import towers
from care_trainer.augment import PairCollator
from care_trainer.bag import BagLoss, Parts, bag_table, random_bag, start_from_bag
from care_trainer.config import Bag
from care_trainer.data import read_pairs, row_weights
from care_trainer.fitting import fit
from care_trainer.stages.context import Context, Trained
from care_trainer.stages.contrastive import info_nce_of, pair_rows


def train_bag(context: Context) -> Trained:
    """Train the bag on pairs, and let both encoders start as it."""
    stage = context.stage
    assert isinstance(stage, Bag)
    query, document = towers.load(context.query), towers.load(context.document)
    pairs = read_pairs(context.data, context.data_root)
    bag = random_bag(
        query.tokenizer.backend_tokenizer,
        context.run.dim,
        [pair.query for pair in pairs] + [pair.positive for pair in pairs],
        stage.max_tokens or context.run.document.max_tokens,
    )
    trainable = towers.make_trainable(bag, side="bag", lora=False)
    info_nce = info_nce_of(stage)
    job = context.job(
        weights=row_weights(pairs, context.data),
        collator=PairCollator(stage.crop, preprocess_fn=bag.preprocess),
    )
    parts = Parts(bag.tokenizer, stage.compose)
    loss = BagLoss(bag, info_nce, parts, stage.token_dropout)
    metrics = fit(bag, loss, pair_rows(pairs, stage.hard_negatives), job)
    table = parts.fold(bag_table(bag))
    query, document = start_from_bag(query, table), start_from_bag(document, table)
    joined = towers.pair(query, document)
    return Trained(query, document, {"bag": trainable}, metrics, info_nce.temperature, joined)
