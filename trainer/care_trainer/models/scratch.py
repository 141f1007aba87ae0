"""Base models without a hub: a tokenizer trained on the data, and BERT and Qwen3 models with random weights."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

from care_trainer.config import Scratch, Tower, Vocabulary

PAD, UNK, CLS, SEP, MASK, EOS = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOS]"
SPECIAL = [PAD, UNK, CLS, SEP, MASK, EOS]
_STEP = 1e-4
"""Distance of the scores of characters that a unigram trainer keeps without one of their own."""
_HAN_RUN = Regex(r"[^\p{L}\p{N}]|\d|[a-z]+")
"""Punctuation, digits and Latin words stand alone; what is left between them are runs of Chinese characters."""


def train_tokenizer(vocabulary: Vocabulary, texts: Iterable[str]) -> Tokenizer:
    """Train the tokenizer that encoders from scratch share: the same texts make the same one.

    The library counts words in hash maps of random order. What that decides is decided before: which characters belong
    to the alphabet where counts are equal, and the ids of single characters, by which equally frequent merges are
    ordered. A unigram model is put in order afterwards, see `_ordered`.
    """
    tokenizer = Tokenizer(_empty_model(vocabulary.kind))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    if vocabulary.kind == "wordpiece":
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.BertNormalizer(lowercase=True)])
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(_HAN_RUN, "isolated")
    counts, inner = _characters(tokenizer, texts)
    if vocabulary.kind == "wordpiece":
        # As special tokens they get their ids first; the model is then moved to a tokenizer that does not know them so.
        pieces = [f"##{character}" for character in inner]
        tokenizer.train_from_iterator(texts, _trainer(vocabulary, sorted(counts), pieces))
        tokenizer = _with_model(tokenizer, models.WordPiece(tokenizer.get_vocab(), unk_token=UNK))
    else:
        alphabet = sorted(counts, key=lambda character: (-counts[character], character))[: vocabulary.size // 2]
        tokenizer.train_from_iterator(texts, _trainer(vocabulary, alphabet))
    return _ordered(tokenizer) if vocabulary.kind == "unigram" else tokenizer


def _characters(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[Counter[str], list[str]]:
    """Count the characters of the words that training will see, and list those that continue a word, sorted."""
    counts: Counter[str] = Counter()
    inner: set[str] = set()
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
            counts.update(word)
            inner.update(word[1:])
    return counts, sorted(inner)


def _ordered(tokenizer: Tokenizer) -> Tokenizer:
    """Return a unigram tokenizer whose pieces and scores do not depend on the order of a hash map.

    The trainer keeps characters that no longer have a score of their own: in random order, each `_STEP` above the one
    before, from the lowest score on. They get these scores in their own order. The other scores are sums that differ in
    the last bits: they are rounded.
    """
    whole = json.loads(tokenizer.to_str())
    special, pieces = whole["model"]["vocab"][: len(SPECIAL)], whole["model"]["vocab"][len(SPECIAL) :]
    lowest = min(score for _, score in pieces)
    kept: list[tuple[str, float]] = []
    for character, score in sorted((piece for piece in pieces if len(piece[0]) == 1), key=itemgetter(1)):
        steps = (score - lowest) / _STEP
        if steps > len(kept):
            break
        if abs(steps - round(steps)) < 1e-6:
            kept.append((character, score))
    scores = dict(zip(sorted(character for character, _ in kept), (score for _, score in kept), strict=True))
    scored = [(piece, round(scores.get(piece, score), 6)) for piece, score in pieces]
    whole["model"]["vocab"] = [*special, *sorted(scored, key=lambda piece: (-piece[1], piece[0]))]
    return Tokenizer.from_str(json.dumps(whole))


def _with_model(tokenizer: Tokenizer, model: Any) -> Tokenizer:
    moved = Tokenizer(model)
    moved.normalizer, moved.pre_tokenizer, moved.decoder = (
        tokenizer.normalizer,
        tokenizer.pre_tokenizer,
        tokenizer.decoder,
    )
    moved.add_special_tokens(SPECIAL)
    return moved


def _empty_model(kind: str) -> Any:
    if kind == "bpe":
        return models.BPE(unk_token=UNK)
    return models.WordPiece(unk_token=UNK) if kind == "wordpiece" else models.Unigram()


def _trainer(vocabulary: Vocabulary, alphabet: list[str], pieces: Sequence[str] = ()) -> Any:
    common: dict[str, Any] = {
        "vocab_size": vocabulary.size,
        "special_tokens": [*SPECIAL, *pieces],
        "show_progress": False,
    }
    if vocabulary.kind == "unigram":
        return trainers.UnigramTrainer(
            **common, unk_token=UNK, max_piece_length=vocabulary.max_piece_characters, shrinking_factor=0.8
        )
    if vocabulary.kind == "wordpiece":
        return trainers.WordPieceTrainer(**common, min_frequency=vocabulary.min_frequency, initial_alphabet=alphabet)
    return trainers.BpeTrainer(
        **common,
        min_frequency=vocabulary.min_frequency,
        max_token_length=vocabulary.max_piece_characters,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
    )


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
