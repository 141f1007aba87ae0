"""Stage ``align`` (Stage I): the query encoder learns to give the frozen document encoder's vector of the same text."""

from datasets import Dataset

from care_trainer import towers
from care_trainer.config import Align
from care_trainer.data import read_texts, row_weights
from care_trainer.distributed import main_process_first
from care_trainer.fitting import fit
from care_trainer.losses import EmbeddingLoss
from care_trainer.objectives import AlignObjective, InfoNce
from care_trainer.stages.context import Context, Trained
from care_trainer.teacher import Half, TeacherCollator, teacher_vectors


def train_align(context: Context) -> Trained:
    """Align the query encoder [4.3.1, equation (3)]; the teacher's vectors are computed once."""
    stage = context.stage
    assert isinstance(stage, Align)
    texts = read_texts(context.data, context.data_root, stage.sides)
    vectors = stored_vectors(context, [text.text for text in texts])
    query = towers.load(context.query)
    trainable = towers.make_trainable(query, side="query", lora=context.run.query.lora is not None)
    objective = AlignObjective(
        InfoNce(stage.temperature, gather=True),
        contrastive_weight=stage.contrastive_weight,
        mse_weight=stage.mse_weight,
        kl_weight=stage.kl_weight,
    )
    loss = EmbeddingLoss(
        query,
        objective,
        mini_batch_size=stage.mini_batch_size,
        mini_batch_tokens=stage.mini_batch_tokens,
        cached=stage.cached,
    )
    rows = Dataset.from_dict({"text": [text.text for text in texts], "label": list(range(len(texts)))})
    prompts = {"text": context.run.query.prompt}
    collator = TeacherCollator(vectors, preprocess_fn=query.preprocess, prompts=prompts, max_length=stage.max_tokens)
    job = context.job(weights=row_weights(texts, context.data), collator=collator)
    metrics = fit(query, loss, rows, job)
    document = towers.load(context.document)
    return Trained(query, None, {"query": trainable}, metrics, stage.temperature, towers.pair(query, document))


def stored_vectors(context: Context, texts: list[str]) -> Half:
    """Give the newest document encoder's vectors of texts, (len(texts), dim), computed once and kept for a resume."""
    done = 0

    def report(rows: int) -> None:
        nonlocal done
        done += rows
        context.report("teacher", done, len(texts), float("nan"))

    with main_process_first():
        return teacher_vectors(
            lambda: towers.load(context.document),
            context.document,
            texts,
            context.folder / "teacher",
            dim=context.run.dim,
            report=report,
        )
