"""Stage ``align`` (Stage I), on the document encoder's vectors of the same texts."""

from collections.abc import Sequence

import numpy as np

from care_trainer.config import Align, Geometry
from care_trainer.data.collators import Stored
from care_trainer.data.read import text_key
from care_trainer.learn.snapshot import load_snapshot
from care_trainer.losses.objectives import AlignObjective, InfoNce, Others
from care_trainer.models.vector_cache import Half
from care_trainer.stages.context import Context, Trained, train_student


def train_align(context: Context) -> Trained:
    """Align the query encoder [4.3.1, equation (3)] with vectors that are computed once, or stored in a collection."""
    stage = context.stage
    assert isinstance(stage, Align)
    vectors: Half
    if stage.pairs:
        rows = context.rows()
        documents, vectors = context.stored_documents(rows)
        objective = align_objective(stage, context.run.geometry, documents, vectors)
        return train_student(context, objective, rows, ["query"], documents=(documents, vectors))
    rows = context.rows()
    texts = rows.columns["text"]
    if context.run.document.collection is None:
        vectors = context.stored_vectors(texts, "text", prompt=stage.teacher_prompt)
    else:
        vectors = load_snapshot(context.run.collection_folder).vectors
    return train_student(context, align_objective(stage, context.run.geometry, texts, vectors), rows, ["text"], vectors)


def align_objective(stage: Align, geometry: Geometry, texts: Sequence[str], vectors: Stored) -> AlignObjective:
    """Return the objective of Stage I."""
    others = None
    if stage.negatives:
        others = Others(vectors, np.fromiter(map(text_key, texts), np.int64, len(texts)), stage.negatives)
    return AlignObjective(
        InfoNce(stage.temperature, gather=True, geometry=geometry),
        contrastive_weight=stage.contrastive_weight,
        mse_weight=stage.mse_weight,
        others=others,
    )
