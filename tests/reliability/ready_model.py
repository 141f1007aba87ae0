"""A document encoder without a model, as fast or slow as it is told to be, and a corpus for it."""

import hashlib
import json
import random
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from care_qdrant.contracts.contract import VectorContract
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
    """Encoder that looks the vector of a text up in a fixed table, by a checksum of the text."""

    def __init__(self, dim: int, max_tokens: int = 64, texts_per_second: float | None = None) -> None:
        """Draw the table; a character is a token, and a speed is slept, as while a GPU works."""
        self.dim, self.max_tokens, self.prompt = dim, max_tokens, ""
        self.texts_per_second = texts_per_second
        self.encoded = 0
        rows = np.random.default_rng(0).normal(size=(4_096, dim)).astype(np.float32)
        self.vectors: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Return one unit vector per text: (len(texts), dim)."""
        self.encoded += len(texts)
        if self.texts_per_second is not None:
            time.sleep(len(texts) / self.texts_per_second)
        prompt = prompt or ""
        return self.vectors[[zlib.crc32((prompt + text).encode()) % len(self.vectors) for text in texts]]

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the length of each text in characters."""
        return [len(text) for text in texts]


class ReadyModel:
    """The part of `CareModel` that ingestion and attach use, around a `ReadyEncoder`."""

    def __init__(self, dim: int, max_tokens: int = 64, texts_per_second: float | None = None) -> None:
        self.name = "ready-vectors"
        self.document_encoder = ReadyEncoder(dim, max_tokens, texts_per_second)
        self.document_tokenizer = self.document_encoder

    def require_documents(self) -> None:
        """Every machine can encode these."""

    def contract(self) -> VectorContract:
        """Return the contract that the collection stores."""
        dim = self.document_encoder.dim
        return VectorContract(hashlib.sha256(f"ready/{dim}".encode()).hexdigest(), self.name, dim)


def write_corpus(path: Path, documents: int, *, sentences: int = 6, seed: int = 0) -> Path:
    """Write generated documents of 1 to ``sentences`` sentences, one JSON object per line."""
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(documents):
            text = f"第{number}条：" + "".join(rng.choices(SENTENCES, k=rng.randint(1, sentences)))
            row = {"id": f"doc-{number}", "text": text, "metadata": {"number": number}}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path
