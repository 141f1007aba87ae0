"""RetroMAE as a loss of sentence-transformers' trainer (arXiv 2205.12035) [D.1].

The encoder sees a text with 30 % of its tokens masked; a one-layer decoder, which
sees the sentence vector and for each position its own random half of the tokens, reconstructs the whole text. What the
decoder lacks must be in the sentence vector.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForMaskedLM

from care_qdrant.encoders.local.architecture import native_folder
from care_qdrant.model.hub import fetch_document_side
from care_trainer.losses.embedding import Features, without_keys
from care_trainer.models import towers

IGNORED = -100
"""Target of a token that the cross-entropy leaves out."""
CHUNK_LOGITS = 2**25
"""Logits held at once on a CPU: 128 MiB in float32; 48 texts of 512 tokens over 250,048 words would be 24 GiB."""
CHUNK_SHARE = 16
"""A chunk takes 1 / 16 of a GPU's memory: 1,789 tokens over 250,048 words on 80 GiB; 134 leave most of it idle."""
_LOGIT_BYTES = 12
"""Memory of one logit: in half precision, in float32, and its gradient."""


class RetroMaeLoss(nn.Module):
    """Masked encoder and enhanced decoder, sharing the encoder's vocabulary head."""

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        base: str | None = None,
        revision: str | None = None,
        encoder_masked: float = 0.3,
        decoder_masked: float = 0.5,
        bf16: bool = False,
    ) -> None:
        super().__init__()
        self.model: Any = model
        self.encoder_masked, self.decoder_masked, self.bf16 = encoder_masked, decoder_masked, bf16
        transformer = towers.transformer_of(model)
        tokenizer, config = towers.tokenizer_of(transformer), transformer.model.config
        self.mask_id, self.vocabulary = tokenizer.mask_token_id, len(tokenizer)
        self.special: Tensor
        self.register_buffer("special", torch.tensor(sorted(tokenizer.all_special_ids)), persistent=False)
        self.head = masked_head(model, base, revision)
        self.embeddings = transformer.model.get_input_embeddings()
        self.words = towers.word_embeddings(model)
        self.scale = 1.0 if base is not None else output_scale(model)
        self.position = nn.Embedding(tokenizer.model_max_length, config.hidden_size)
        nn.init.normal_(self.position.weight, std=0.02)
        self.layer = DecoderLayer(config.hidden_size, config.num_attention_heads, config.intermediate_size)

    def forward(self, sentence_features: Iterable[Features], _labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return the losses of encoder and decoder, two scalars, for a batch of one text column."""
        features = without_keys(next(iter(sentence_features)))
        ids, attention = features["input_ids"], features["attention_mask"].bool()
        special = torch.isin(ids, self.special)
        shown, targets = mask_tokens(ids, special, self.encoder_masked, self.mask_id, self.vocabulary)
        output = self.model({**features, "input_ids": shown})
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=self.bf16):
            masked = targets != IGNORED  # the head costs as much as the model: only masked positions pass it
            encoder = self._cross_entropy(output["token_embeddings"][masked], targets[masked])
            visible = decoder_visibility(attention, self.decoder_masked)
            words, position = self.embeddings(ids), self.position.weight[: ids.shape[1]]
            hidden = decode(self.layer, words, position, output["sentence_embedding"], visible)
            decoder = self._cross_entropy(hidden[~special], ids[~special])
        return {"encoder": encoder, "decoder": decoder}

    def _cross_entropy(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return chunked_cross_entropy(self.head, hidden, targets, len(self.words), scale=self.scale)


def chunked_cross_entropy(
    head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, vocabulary: int, *, scale: float = 1.0
) -> Tensor:
    """Return the mean cross-entropy of a vocabulary head without ever holding all logits.

    Each chunk's logits are computed again in the backward pass: a second pass of the head, for the memory of one chunk.
    The mean over no tokens is 0: a batch of short texts may have none that is masked, and one of unknown characters
    none that is ordinary.
    """

    def total(part: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(scale * head(part).float(), target, reduction="sum")

    rows = chunk_rows(vocabulary, hidden.device)
    sums = [
        checkpoint(total, part, target, use_reentrant=False)
        for part, target in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
    ]
    return torch.stack(sums).sum() / max(1, len(targets))


def chunk_rows(vocabulary: int, device: torch.device) -> int:
    """Return the tokens whose logits are held at once; by all of a GPU's memory, so that a resumed run has the same."""
    logits = CHUNK_LOGITS
    if device.type == "cuda":
        logits = torch.cuda.get_device_properties(device).total_memory // (CHUNK_SHARE * _LOGIT_BYTES)
    return max(1, logits // vocabulary)


class DecoderLayer(nn.Module):
    """One post-norm transformer layer whose queries and keys differ, for RetroMAE's enhanced decoding."""

    def __init__(self, hidden: int, heads: int, intermediate: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(hidden, heads, dropout=0.1, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(hidden, intermediate), nn.GELU(), nn.Linear(intermediate, hidden))
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.heads = heads

    def forward(self, queries: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
        """Attend from (rows, length, hidden) to as many keys, where ``visible`` (rows, length, length) allows it."""
        blocked = (~visible).repeat_interleave(self.heads, dim=0)
        attended, _ = self.attention(queries, keys, keys, attn_mask=blocked, need_weights=False)
        hidden = self.norms[0](queries + attended)
        result: Tensor = self.norms[1](hidden + self.feed_forward(hidden))
        return result


def decode(layer: DecoderLayer, words: Tensor, position: Tensor, sentence: Tensor, visible: Tensor) -> Tensor:
    """Return the decoder's hidden states, (rows, length, hidden)."""
    sentence = sentence[:, None]
    keys = torch.cat([sentence, words[:, 1:] + position[1:]], dim=1)
    hidden: Tensor = layer(position + sentence, keys, visible)
    return hidden


def mask_tokens(ids: Tensor, special: Tensor, fraction: float, mask_id: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Mask tokens as BERT does: of the chosen ones, 80 % become the mask, 10 % random tokens, 10 % stay."""
    chosen = (torch.rand(ids.shape, device=ids.device) < fraction) & ~special
    action = torch.rand(ids.shape, device=ids.device)
    masked = ids.masked_fill(chosen & (action < 0.8), mask_id)
    replaced = chosen & (action >= 0.8) & (action < 0.9)
    masked = torch.where(replaced, torch.randint_like(ids, vocabulary), masked)
    return masked, ids.masked_fill(~chosen, IGNORED)


def decoder_visibility(attention: Tensor, hidden_fraction: float) -> Tensor:
    """Draw what each decoder position sees: a random part of the text, the sentence vector, never itself."""
    rows, length = attention.shape
    visible = torch.rand((rows, length, length), device=attention.device) >= hidden_fraction
    visible &= attention[:, None, :]
    visible.diagonal(dim1=1, dim2=2).fill_(False)
    visible[:, :, 0] = True
    return visible


def masked_head(model: SentenceTransformer, base: str | None, revision: str | None = None) -> nn.Module:
    """Return the vocabulary head of a masked language model, tied to the encoder's embeddings."""
    encoder = towers.transformer_of(model).model
    if base is None:
        language_model = AutoModelForMaskedLM.from_config(encoder.config)  # type: ignore[no-untyped-call]
    else:
        with native_folder(fetch_document_side(base, revision=revision)) as folder:
            language_model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32)
    language_model.get_output_embeddings().weight = encoder.get_input_embeddings().weight
    head = next(getattr(language_model, name) for name in ("cls", "lm_head", "head") if hasattr(language_model, name))
    assert isinstance(head, nn.Module)
    return head


def output_scale(model: SentenceTransformer) -> float:
    """Return the factor of the logits where the encoder's token vectors are also the output weights.

    A language model starts with token vectors of standard deviation 0.02 (``initializer_range``), which makes first
    logits small. Static tables have vectors fifty times longer, and first logits would reach the hidden size: a loss
    of hundreds, whose gradient undoes the table.
    """
    usual: float = towers.transformer_of(model).model.config.initializer_range
    return usual / towers.word_embeddings(model).detach().float().square().mean().sqrt().item()
