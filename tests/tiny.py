"""Tiny real models, built from configs in a second or two, and an encoder that needs no model at all."""

import hashlib
import json
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.encoders import Encoder, TokenCounter
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT, Analyser
from care_qdrant.encoders.terms.weights import TermWeights
from care_qdrant.types import Vectors

TEXTS = [
    "高血压患者饮食上要注意什么？",
    "二甲双胍的常见不良反应是恶心和腹泻。",
    "孩子发烧三天，咳嗽有痰，需要吃消炎药吗",
    "糖化血红蛋白 HbA1c 6.5% 说明什么",
    "急性阑尾炎的典型表现是转移性右下腹痛。",
    "心肌梗死发作时应立即拨打急救电话，保持安静。",
    "甲状腺功能亢进症可出现心悸、多汗、体重下降。",
    "EGFR 突变的肺癌可以用靶向药",
]
_TERMS = np.sort(np.array([bm25.term_id(term) for term in ("恶心", "怎么", "么办", "靶向", "病")], np.uint32))
TERM_WEIGHTS = TermWeights(_TERMS, np.linspace(0.2, 0.7, len(_TERMS), dtype=np.float32))
"""Weights of the query terms of `HashModel`."""
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


class HashEncoder:
    """Gives each text a fixed random direction: same text, same vector, on every machine and in every process."""

    def __init__(self, dim: int = 32, max_tokens: int = 64, salt: str = "") -> None:
        self.dim, self.max_tokens, self.salt, self.prompt = dim, max_tokens, salt, ""
        self.encoded: list[str] = []
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        with self._lock:
            self.encoded.extend(texts)
        rows = [self._row((prompt or "") + text) for text in texts]
        return np.array(rows, dtype=np.float32).reshape(len(rows), self.dim)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text) + 2 for text in texts]

    def _row(self, text: str) -> Vectors:
        digest = hashlib.sha256((self.salt + text).encode("utf-8", "surrogatepass")).digest()
        row = np.random.default_rng(int.from_bytes(digest[:8], "big")).normal(size=self.dim)
        return (row / np.linalg.norm(row)).astype(np.float32)


class BusyEncoder(HashEncoder):
    """Calls ``work`` with the number of each batch, from 1, before it encodes it."""

    def __init__(self, work: Callable[[int], object]) -> None:
        super().__init__()
        self.work, self.batches = work, 0

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        self.batches += 1
        self.work(self.batches)
        return super().encode(texts, prompt=prompt)


@dataclass(frozen=True, slots=True)
class GivenEncoder:
    """A side whose encoder is loaded already."""

    encoder: Encoder

    def open(self) -> Encoder:
        """Return the encoder."""
        return self.encoder

    def tokenizer(self) -> TokenCounter:
        """Return the encoder, which counts its tokens itself."""
        return self.encoder

    def require(self) -> None:
        """Refuse nothing: the encoder is loaded."""


class HashModel:
    """A pair of `HashEncoder`s that share one space, with the part of `CareModel` that ingestion and search use."""

    def __init__(self, dim: int = 32, name: str = "hash-model", salt: str = "", max_tokens: int = 64) -> None:
        self.name, self.dim, self.temperature = name, dim, 0.02
        self.fingerprint = hashlib.sha256(f"{name}/{dim}/{salt}".encode()).hexdigest()
        self._encoder = HashEncoder(dim, max_tokens, salt)
        self.document_encoder_reads = 0

    @property
    def query_encoder(self) -> HashEncoder:
        return self._encoder

    @property
    def document_encoder(self) -> HashEncoder:
        """Counts how often it was asked for: an unchanged corpus must not read the model."""
        self.document_encoder_reads += 1
        return self._encoder

    @property
    def document_tokenizer(self) -> HashEncoder:
        """Reading it is no reading of the model."""
        return self._encoder

    alpha = 0.5
    term_weights_digest: str | None = "of TERM_WEIGHTS"

    def query_terms(self, text: str, analyser: Analyser = DEFAULT) -> models.SparseVector:
        return TERM_WEIGHTS.query_vector(text, analyser)

    def encode_query(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        return self.query_encoder.encode(texts, prompt=prompt)

    def encode_document(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        return self.document_encoder.encode(texts, prompt=prompt)

    def query_prompt(self, task: str | None = None) -> None:
        """Return the model's own prompt: it has none by task."""
        assert task is None

    def require_documents(self) -> None:
        """Every machine can encode these."""

    def contract(self) -> VectorContract:
        return VectorContract(fingerprint=self.fingerprint, model=self.name, dim=self.dim)


class Killed(BaseException):
    """Ends a run without any of its clean-up being asked for."""


class MortalModel(HashModel):
    """Encodes a few batches and then dies."""

    def __init__(self, batches: int, name: str = "care", salt: str = "") -> None:
        super().__init__(name=name, salt=salt)
        encode, left = self._encoder.encode, iter(range(batches))

        def mortal(texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
            if next(left, None) is None:
                raise Killed
            return encode(texts, prompt=prompt)

        self._encoder.encode = mortal  # type: ignore[method-assign]


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def medical_texts(count: int, seed: int = 0) -> list[str]:
    """Return distinct short texts of varied length."""
    rng = random.Random(seed)
    return [f"{rng.choice(TEXTS)}{'，'.join(rng.sample(TEXTS, rng.randint(0, 2)))}（{n}）" for n in range(count)]


def broken(value: Any, at_random: random.Random) -> Any:
    """Return a JSON value with one part taken away or replaced."""
    if isinstance(value, dict | list) and value and at_random.random() < 0.8:
        changed: Any = dict(value) if isinstance(value, dict) else list(value)
        key = at_random.choice(list(changed) if isinstance(changed, dict) else range(len(changed)))
        if at_random.random() < 0.3:
            del changed[key]
        else:
            changed[key] = broken(changed[key], at_random)
        return changed
    return at_random.choice([None, [], {}, "x", -1, 0, True, 1e9, "", [1], {"a": 1}])


def point_alias(client: QdrantClient, alias: str, collection: str) -> None:
    """Let an alias stand for a collection, whatever it stood for before."""
    operation = models.CreateAlias(collection_name=collection, alias_name=alias)
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=operation)])


def query_tower(folder: Path, *, dim: int = 32, pooling: str = "cls", layers: int = 2, seed: int = 0) -> Path:
    """Save a random BERT query encoder as a complete sentence-transformers model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel, set_seed

    base = folder.with_name(folder.name + "-base")
    tokenizer = bert_tokenizer()
    set_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=dim,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=dim * 2,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(base)
    tokenizer.save_pretrained(base)
    transformer = Transformer(str(base), max_seq_length=48)
    model = SentenceTransformer(modules=[transformer, Pooling(dim, pooling), Normalize()], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def static_tower(folder: Path, *, dim: int = 32, max_tokens: int | None = 12, seed: int = 0) -> Path:
    """Save a random static query encoder; its tokenizer would add markers, which such an encoder never reads."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = bert_tokenizer().backend_tokenizer
    if max_tokens is not None:
        tokenizer.enable_truncation(max_tokens)
    torch.manual_seed(seed)
    table = StaticEmbedding(tokenizer, embedding_dim=dim)
    SentenceTransformer(modules=[table, Normalize()], device="cpu").save_pretrained(
        str(folder), create_model_card=False
    )
    return folder


def weighted_tower(folder: Path, *, dim: int = 32) -> Path:
    """Save a random BERT encoder whose tokens carry weights, as those of the built-in pair do, and a dense layer."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize
    from sentence_transformers.sentence_transformer.modules import Pooling, WordWeights

    plain = query_tower(folder.with_name(folder.name + "-plain"), dim=dim)
    transformer = SentenceTransformer(str(plain), device="cpu")[0]
    tokens = transformer.tokenizer.convert_ids_to_tokens(list(range(len(transformer.tokenizer))))
    weights = WordWeights(tokens, {token: 0.1 + number % 7 for number, token in enumerate(tokens)})
    dense = Dense(dim, dim, bias=False, activation_function=torch.nn.Identity())
    modules = [transformer, weights, Pooling(dim, "mean"), dense, Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


def document_tower(
    folder: Path, *, dim: int = 32, hidden: int = 64, layers: int = 2, seed: int = 1, eos: bool = True
) -> Path:
    """Save a random Qwen3 document encoder: last-token pooling, identity slice to ``dim``, unit length."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import Qwen3Config, Qwen3Model, set_seed

    base = folder.with_name(folder.name + "-base")
    tokenizer = qwen_tokenizer(eos)
    set_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=hidden * 2,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=2,
        bos_token_id=None,
    )
    Qwen3Model(config).save_pretrained(base)
    tokenizer.save_pretrained(base)
    slice_ = Dense(hidden, dim, bias=False, activation_function=torch.nn.Identity())
    with torch.no_grad():
        slice_.linear.weight.copy_(torch.eye(dim, hidden))
    transformer = Transformer(str(base), max_seq_length=96)
    model = SentenceTransformer(modules=[transformer, Pooling(hidden, "lasttoken"), slice_, Normalize()], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def care_folder(
    folder: Path, *, name: str = "tiny-pair", dim: int = 32, seed: int = 0, onnx: bool = False, **more: Any
) -> Path:
    """Write a whole CARE folder with a random, unaligned pair; ``more`` goes to `write_checkpoint`."""
    from care_qdrant.model.folder import write_checkpoint

    query = query_tower(folder.with_name(folder.name + "-query"), dim=dim, seed=seed)
    document = document_tower(folder.with_name(folder.name + "-document"), dim=dim, seed=seed + 1)
    exported = None
    if onnx:
        from care_qdrant.model.export.onnx import export_query_encoder

        exported = export_query_encoder(query, TEXTS)
    write_checkpoint(folder, name=name, query=query, document=document, onnx=exported, **more)
    return folder


def bert_tokenizer():  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL_TOKENS, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )


def qwen_tokenizer(eos: bool):  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    if eos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|im_end|>", special_tokens=[("<|im_end|>", 2)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        model_max_length=128,
    )
