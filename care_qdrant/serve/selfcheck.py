"""What a service makes sure of before it serves a pair: that its answers are those of the folder."""

from pathlib import Path

import numpy as np

from care_qdrant.errors import AlteredModel
from care_qdrant.model.references import REFERENCE_TEXTS, check_references
from care_qdrant.serve.lines import Side
from care_qdrant.serve.pairs import ServedPair

BESIDE = ("高血压", "患者，男，68 岁，反复胸闷、气促三年，加重一周，夜间不能平卧，双下肢水肿。" * 4)
"""A short and a long text: what a batch pads, and what an int8 encoder scales, depend on its longest and largest."""
LEAST_COSINE = 0.99
"""Of a text's vectors, alone and in a batch."""


async def check_answers(pair: ServedPair, side: Side) -> None:
    """Encode the references of the folder as requests do, alone and in a batch, and compare."""
    card = pair.model.card
    files = None if card is None else card.onnx if side == "query" else card.document_onnx
    references = files.references if files is not None else ()
    texts = [reference.text for reference in references] or list(REFERENCE_TEXTS)
    alone = np.concatenate([await pair.encode([text], side) for text in texts])
    batch = (await pair.encode([*texts, *BESIDE], side))[: len(texts)]
    where = Path(f"{pair.name}@{pair.fingerprint[:12]}/{side}")
    if files is not None:
        least = min(files.min_cosine(file) for file in (files.fp32, files.int8) if file is not None)
        for found in (alone, batch):
            check_references(lambda _, found=found: found, references, where, least)  # type: ignore[misc]
    lengths = np.linalg.norm(alone, axis=1) * np.linalg.norm(batch, axis=1)
    lowest = float((np.einsum("td,td->t", alone, batch) / np.maximum(lengths, 1e-12)).min())
    if not lowest >= LEAST_COSINE:
        raise AlteredModel(
            f"{where}: the vector of a text depends on the texts beside it (cosine {lowest:.3f}, expected at least "
            f"{LEAST_COSINE}): this encoder cannot be served in batches. Check it with: care model verify"
        )
