"""Stage ``static``: the from-scratch encoders start from one static embedding table, trained in minutes."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import set_seed

from care_trainer.config import Static
from care_trainer.data.collators import PairCollator
from care_trainer.losses.embedding import KEYS, Features, drop_tokens, without_keys
from care_trainer.losses.objectives import Batch, pair_objective
from care_trainer.models import towers
from care_trainer.models.static import Expansion, random_static, start_from_static, static_module, weighted_sums
from care_trainer.models.tokens import Parts
from care_trainer.stages.context import Context, Trained
from care_trainer.training.loop import fit


class StaticLoss(nn.Module):
    """An objective over the texts of a static encoder, in place of `EmbeddingLoss`."""

    def __init__(self, model: SentenceTransformer, objective: nn.Module, expand: Expansion, stage: Static) -> None:
        super().__init__()
        self.model: Any = model
        self.objective, self.expand, self.stage = objective, expand, stage

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch, a scalar, from one flat feature dictionary for each column."""
        columns = list(sentence_features)
        vectors = []
        for number, column in enumerate(columns):
            ids, offsets = drop_tokens(column["input_ids"], column["offsets"], self.stage.token_dropout)
            ids, offsets = self.expand(ids, offsets)
            if number == 0 or self.stage.lead_tokens is None:
                encoded = self.model({**without_keys(column), "input_ids": ids, "offsets": offsets})
                vectors.append(encoded["sentence_embedding"])
            else:
                vectors.append(weighted_sums(static_module(self.model), ids, offsets, self.stage.lead_tokens))
        loss: Tensor = self.objective(Batch(vectors, [column[KEYS] for column in columns], labels))
        return loss


def train_static(context: Context) -> Trained:
    """Train a table on pairs, and let both encoders start from it; a pretrained document encoder stays as it is."""
    stage = context.stage
    assert isinstance(stage, Static)
    query = towers.load(context.query)
    is_static = towers.is_static(query)
    rows = context.rows()
    # The same table, even if base models or a killed run drew random numbers before.
    set_seed(context.run.seed)
    model = random_static(
        query.tokenizer if is_static else query.tokenizer.backend_tokenizer,
        context.run.query.static or context.run.dim,
        chain(rows.columns["query"], rows.columns["positive"]),
        stage.max_tokens or context.run.document.max_tokens,
    )
    trainable = {"static": towers.make_trainable(model, side="static", lora=False)}
    objective = pair_objective(stage)
    collator = PairCollator(
        stage.crop, negatives=stage.hard_negatives, seed=context.run.seed, preprocess_fn=model.preprocess
    )
    parts = Parts.of(model.tokenizer, compose=stage.compose)
    metrics = fit(context, model, StaticLoss(model, objective, Expansion(parts), stage), rows, collator)
    trained = static_module(model).embedding.weight.detach()
    table = torch.from_numpy(parts.fold(trained.cpu().numpy())).to(trained.device)
    if is_static:
        with torch.no_grad():
            static_module(query).embedding.weight.copy_(table)
    else:
        query = start_from_static(query, table)
    if context.run.document.scratch is None:
        return Trained(query, None, trainable, metrics, objective.contrastive.temperature, query)
    document = start_from_static(towers.load(context.document), table, stage.lead_tokens)
    return Trained(query, document, trainable, metrics, objective.contrastive.temperature, towers.pair(query, document))
