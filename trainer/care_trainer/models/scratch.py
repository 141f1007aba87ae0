"""Base models without a hub: a tokenizer trained on the data, and BERT and Qwen3 models with random weights."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

from care_trainer.config import Scratch, Tower, Vocabulary
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


def write_query_base(tower: Tower, tokenizer: Tokenizer, folder: Path) -> None:
    """Save a BERT with random weights and its tokenizer, ``[CLS] text [SEP]``, in a folder."""
    scratch = _shape(tower)
    fast = fast_tokenizer(tokenizer, f"{CLS} $A {SEP}", tower.max_tokens)
    config = BertConfig(
        vocab_size=len(fast),
        hidden_size=scratch.hidden,
        num_hidden_layers=scratch.layers,
        num_attention_heads=scratch.heads,
        intermediate_size=scratch.intermediate,
        max_position_embeddings=scratch.positions,
        hidden_dropout_prob=scratch.dropout,
        attention_probs_dropout_prob=scratch.dropout,
        pad_token_id=fast.pad_token_id,
    )
    _save(BertModel(config), fast, folder)


def write_document_base(tower: Tower, tokenizer: Tokenizer, folder: Path) -> None:
    """Save a Qwen3 with random weights and its tokenizer, ``text [EOS]``, in a folder."""
    scratch = _shape(tower)
    fast = fast_tokenizer(tokenizer, f"$A {EOS}", tower.max_tokens)
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=scratch.hidden,
        num_hidden_layers=scratch.layers,
        num_attention_heads=scratch.heads,
        num_key_value_heads=scratch.key_value_heads or scratch.heads,
        head_dim=scratch.hidden // scratch.heads,
        intermediate_size=scratch.intermediate,
        max_position_embeddings=scratch.positions,
        pad_token_id=fast.pad_token_id,
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
        use_cache=False,
    )
    _save(Qwen3Model(config), fast, folder)


def _shape(tower: Tower) -> Scratch:
    assert tower.scratch is not None
    return tower.scratch


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


def _save(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.save_pretrained(folder)  # type: ignore[operator]
    tokenizer.save_pretrained(folder)
