"""Base models without a hub: a tokenizer trained on the data, and BERT and Qwen3 models with random weights."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

from care_trainer.config import Side, Tower, Vocabulary
from care_trainer.models.tokens import train_pieces

PAD, UNK, CLS, SEP, MASK, EOS = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOS]"
SPECIAL = [PAD, UNK, CLS, SEP, MASK, EOS]
_HAN_RUN = Regex(r"[^\p{L}\p{N}]|\d|[a-z]+")
"""Punctuation, digits and Latin words stand alone; what is left between them are runs of Chinese characters."""


def train_tokenizer(vocabulary: Vocabulary, texts: Iterable[str]) -> Tokenizer:
    """Train the byte-pair tokenizer that encoders from scratch share: the same texts make the same one.

    The library counts words in hash maps of random order. What that decides is decided before: which characters belong
    to the alphabet where counts are equal, and the ids of single characters, by which equally frequent merges are
    ordered.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNK))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(_HAN_RUN, "isolated")
    counts: Counter[str] = Counter()
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
            counts.update(word)
    alphabet = sorted(counts, key=lambda character: (-counts[character], character))[: vocabulary.size // 2]
    train_pieces(
        tokenizer,
        texts,
        vocabulary.size,
        SPECIAL,
        max_characters=vocabulary.max_piece_characters,
        min_occurrences=vocabulary.min_frequency,
        alphabet=alphabet,
    )
    return tokenizer


def write_base(tower: Tower, side: Side, tokenizer: Tokenizer, folder: Path) -> None:
    """Save a model with random weights and its tokenizer: ``[CLS] text [SEP]`` for a BERT, ``text [EOS]`` else."""
    scratch = tower.scratch
    assert scratch is not None
    is_bert = (scratch.architecture or ("bert" if side == "query" else "qwen3")) == "bert"
    fast = fast_tokenizer(tokenizer, f"{CLS} $A {SEP}" if is_bert else f"$A {EOS}", tower.max_tokens)
    shape: dict[str, Any] = {
        "vocab_size": len(fast),
        "hidden_size": scratch.hidden,
        "num_hidden_layers": scratch.layers,
        "num_attention_heads": scratch.heads,
        "intermediate_size": scratch.intermediate,
        "max_position_embeddings": scratch.positions,
        "pad_token_id": fast.pad_token_id,
    }
    if is_bert:
        dropout: dict[str, Any] = {
            "hidden_dropout_prob": scratch.dropout,
            "attention_probs_dropout_prob": scratch.dropout,
        }
        model: torch.nn.Module = BertModel(BertConfig(**shape, **dropout))
    else:
        model = Qwen3Model(
            Qwen3Config(
                **shape,
                num_key_value_heads=scratch.key_value_heads or scratch.heads,
                head_dim=scratch.hidden // scratch.heads,
                bos_token_id=None,
                eos_token_id=fast.eos_token_id,
                use_cache=False,
            )
        )
    model.save_pretrained(folder)  # type: ignore[operator]
    fast.save_pretrained(folder)


def fast_tokenizer(tokenizer: Tokenizer, template: str, max_tokens: int) -> PreTrainedTokenizerFast:
    """Return a trained tokenizer as transformers saves it, with its special tokens placed by a template."""
    own = Tokenizer.from_str(tokenizer.to_str())
    marks = [(mark, own.token_to_id(mark)) for mark in (CLS, SEP, EOS)]
    own.post_processor = processors.TemplateProcessing(single=template, special_tokens=marks)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=own,
        pad_token=PAD,
        unk_token=UNK,
        cls_token=CLS,
        sep_token=SEP,
        mask_token=MASK,
        eos_token=EOS,
        padding_side="right",
        model_max_length=max_tokens,
    )
