"""Stage ``joint`` (Stage II): both encoders on retrieval data, queries against the other side's documents."""

from dataclasses import replace

from care_qdrant.errors import InputError
from care_trainer.config import Joint
from care_trainer.distributed import processes
from care_trainer.losses.embedding import embedding_loss
from care_trainer.losses.objectives import FrozenDocuments, info_nce_of, pair_objective
from care_trainer.models import towers
from care_trainer.stages.context import Context, Trained, train_student
from care_trainer.training.loop import fit


def train_joint(context: Context) -> Trained:
    """Train both encoders with Asym-InfoNCE [4.4, equation (1)], with one learning rate or one for each side."""
    stage, run = context.stage, context.run
    assert isinstance(stage, Joint)
    if stage.freeze_document and not stage.crop:
        return _train_query(context, stage)
    query, query_parameters = context.load_trainable("query")
    if towers.is_static(query) and stage.cached and processes().num_processes > 1:
        raise InputError("stage joint: a static query encoder on several processes needs cached = false")
    trainable = {"query": query_parameters}
    if stage.freeze_document:
        document = context.load("document")
        document.requires_grad_(False)
    else:
        document, trainable["document"] = context.load_trainable("document")
    model, objective = towers.pair(query, document), pair_objective(stage, run.geometry)
    loss = embedding_loss(model, objective, stage)
    rows = context.rows()
    negatives = [f"negative_{number}" for number in range(1, stage.hard_negatives + 1)]
    routes = {"query": "query", **dict.fromkeys(("positive", *negatives), "document")}
    prompts = {column: run.query.prompt if side == "query" else run.document.prompt for column, side in routes.items()}
    collator = context.pair_collator(model, prompts, routes)
    rates = {} if stage.document_learning_rate is None else {r"sub_modules\.document": stage.document_learning_rate}
    metrics = fit(context, model, loss, rows, collator, rates=rates, score=context.scoring(lambda: model))
    trained_document = None if stage.freeze_document else document
    return Trained(query, trained_document, trainable, metrics, objective.contrastive.temperature, model)


def _train_query(context: Context, stage: Joint) -> Trained:
    """Train the query encoder alone: the documents' vectors are computed once, as in Stage I."""
    rows = context.rows()
    info_nce = info_nce_of(stage, context.run.geometry)
    trained = train_student(
        context, FrozenDocuments(info_nce), rows, ["query"], documents=context.stored_documents(rows)
    )
    return replace(trained, temperature=info_nce.temperature)
