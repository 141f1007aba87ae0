"""A document encoder that costs nothing, or exactly what it is told to cost, and a corpus for it."""

import hashlib
import json
import random
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from care_qdrant.store.contracts import VectorContract
from care_qdrant.types import Vectors

SENTENCES = (
    "高血压患者应当限制食盐，每天不超过五克。",
    "二甲双胍宜在餐中或餐后服用，以减少胃肠道反应。",
    "发热超过三天，或出现皮疹、嗜睡时应及时就诊。",
    "糖化血红蛋白反映近三个月的平均血糖水平。",
    "急性胸痛伴大汗，首先要排除心肌梗死。",
    "Aspirin 100 mg is taken once a day. ",
    "术后第一天即可下床活动，以预防下肢静脉血栓。",
    "孕期补充叶酸可以降低神经管畸形的风险。",
)


class ReadyEncoder:
    """Gives each text one of a fixed set of vectors, by a checksum: ready vectors, looked up."""

    def __init__(self, dim: int, max_tokens: int = 64, texts_per_second: float | None = None) -> None:
        """Make the vectors.

        Args:
            dim: Length of each.
            max_tokens: Longest input; a character is a token.
            texts_per_second: How fast to pretend to be; the time is slept, as when a GPU works. None is at once.
        """
        self.dim, self.max_tokens, self.prompt = dim, max_tokens, ""
        self.texts_per_second = texts_per_second
        self.encoded = 0
        rows = np.random.default_rng(0).normal(size=(4_096, dim)).astype(np.float32)
        self.vectors: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Look the vectors up."""
        self.encoded += len(texts)
        if self.texts_per_second is not None:
            time.sleep(len(texts) / self.texts_per_second)
        prompt = prompt or ""
        return self.vectors[[zlib.crc32((prompt + text).encode()) % len(self.vectors) for text in texts]]

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count characters."""
        return [len(text) for text in texts]


class ReadyModel:
    """What ingestion needs of a model, around a `ReadyEncoder`."""

    def __init__(self, dim: int, max_tokens: int = 64, texts_per_second: float | None = None) -> None:
        self.name = "ready-vectors"
        self.document_encoder = ReadyEncoder(dim, max_tokens, texts_per_second)
        self.document_tokenizer = self.document_encoder

    def contract(self) -> VectorContract:
        """Give what the collection remembers."""
        dim = self.document_encoder.dim
        return VectorContract(hashlib.sha256(f"ready/{dim}".encode()).hexdigest(), self.name, dim)


def write_corpus(path: Path, documents: int, *, sentences: int = 6, seed: int = 0) -> Path:
    """Write made-up documents of 1 to ``sentences`` sentences, one JSON object a line."""
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(documents):
            text = f"第{number}条：" + "".join(rng.choices(SENTENCES, k=rng.randint(1, sentences)))
            row = {"id": f"doc-{number}", "text": text, "metadata": {"number": number}}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path
