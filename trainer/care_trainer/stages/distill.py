"""Stage ``distill``: a symmetric student learns the document encoder's scores (baseline of table 7)."""

from care_trainer import towers
from care_trainer.config import Distill
from care_trainer.fitting import fit
from care_trainer.objectives import DistillObjective
from care_trainer.stages.align import stored_vectors
from care_trainer.stages.context import Context, Trained
from care_trainer.stages.contrastive import info_nce_of
from care_trainer.stages.embedding import embedding_loss
from care_trainer.teacher import TeacherCollator


def train_distill(context: Context) -> Trained:
    """Train the query encoder on both sides of pairs, with the frozen document encoder's scores as a second target."""
    stage, prompt = context.stage, context.run.query.prompt
    assert isinstance(stage, Distill)
    rows = context.pair_rows(stage.hard_negatives)
    prompts = {"query": stage.teacher_prompt, "positive": None}
    vectors = [stored_vectors(context, rows.columns[column], column, prompt=prompts[column]) for column in prompts]
    query = towers.load(context.query)
    trainable = towers.make_trainable(query, side="query", lora=context.run.query.lora is not None)
    loss = embedding_loss(query, DistillObjective(info_nce_of(stage), kl_weight=stage.kl_weight), stage)
    collator = TeacherCollator(
        *vectors,
        preprocess_fn=query.preprocess,
        prompts={"query": prompt},
        max_length=stage.max_tokens,
    )
    metrics = fit(query, loss, rows.columns, context.job(weights=rows.weights, collator=collator))
    return Trained(query, None, {"query": trainable}, metrics, stage.temperature, query)
