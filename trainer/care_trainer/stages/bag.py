"""Stage ``bag``: the from-scratch encoders start as one bag of token vectors, trained in minutes."""

from itertools import chain

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from care_trainer import towers
from care_trainer.augment import PairCollator
from care_trainer.bag import BagLoss, Parts, bag_module, bag_table, random_bag, start_from_bag
from care_trainer.config import Bag
from care_trainer.fitting import fit
from care_trainer.stages.context import Context, Trained
from care_trainer.stages.contrastive import info_nce_of


def train_bag(context: Context) -> Trained:
    """Train the bag on pairs, and let both encoders start as it; a pretrained document encoder stays as it is."""
    stage = context.stage
    assert isinstance(stage, Bag)
    query = towers.load(context.query)
    static = towers.is_static(query)
    rows = context.pair_rows(stage.hard_negatives)
    bag = random_bag(
        query.tokenizer if static else query.tokenizer.backend_tokenizer,
        context.run.query.static or context.run.dim,
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
    query = _start_static(query, table) if static else start_from_bag(query, table)
    if context.run.document.scratch is None:
        return Trained(query, None, {"bag": trainable}, metrics, info_nce.temperature, query)
    document = start_from_bag(towers.load(context.document), table)
    joined = towers.pair(query, document)
    return Trained(query, document, {"bag": trainable}, metrics, info_nce.temperature, joined)


def _start_static(query: SentenceTransformer, table: Tensor) -> SentenceTransformer:
    """Give a static encoder with the bag's token vectors: they are the same thing."""
    with torch.no_grad():
        bag_module(query).embedding.weight.copy_(table)
    return query
