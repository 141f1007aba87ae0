"""Stage ``joint`` (Stage II): both encoders on retrieval data, queries against the other side's documents."""

from dataclasses import replace

from care_qdrant.errors import InputError
from care_trainer import towers
from care_trainer.augment import PairCollator
from care_trainer.compute import spend_instead
from care_trainer.config import Joint
from care_trainer.distributed import processes
from care_trainer.fitting import fit
from care_trainer.frozen import FrozenDocuments
from care_trainer.stages.align import stored_vectors
from care_trainer.stages.context import Context, Trained
from care_trainer.stages.contrastive import info_nce_of
from care_trainer.stages.embedding import embedding_loss
from care_trainer.teacher import TeacherCollator


def train_joint(context: Context) -> Trained:
    """Train both encoders with Asym-InfoNCE [4.4, equation (1)], one learning rate or one a side."""
    stage, run = context.stage, context.run
    assert isinstance(stage, Joint)
    if stage.freeze_document and not stage.crop:
        if stage.instead_of is not None:
            raise InputError("stage joint: instead_of needs both sides to train; with frozen documents give it epochs")
        return _train_query(context, stage)
    query, document = towers.load(context.query), towers.load(context.document)
    if towers.is_static(query) and stage.cached and processes().num_processes > 1:
        raise InputError("stage joint: a static query encoder on several processes needs cached = false")
    trainable = {"query": towers.make_trainable(query, side="query", lora=run.query.lora is not None)}
    if stage.freeze_document:
        towers.freeze(document)
    else:
        trainable["document"] = towers.make_trainable(document, side="document", lora=run.document.lora is not None)
    stage = spend_instead(context, query, document)
    model, info_nce = towers.pair(query, document), info_nce_of(stage)
    loss = embedding_loss(model, info_nce, stage)
    rows = context.pair_rows(stage.hard_negatives)
    columns = rows.text_columns()
    routes = {column: "query" if column == "query" else "document" for column in columns.column_names}
    prompts = {column: run.query.prompt if side == "query" else run.document.prompt for column, side in routes.items()}
    job = replace(context, stage=stage).job(
        weights=rows.weights,
        routes=routes,
        collator=PairCollator(
            stage.crop,
            preprocess_fn=model.preprocess,
            prompts=prompts,
            router_mapping=routes,
            max_length=stage.max_tokens,
        ),
        rates={} if stage.document_learning_rate is None else {r"sub_modules\.document": stage.document_learning_rate},
    )
    metrics = fit(model, loss, columns, job)
    trained_document = None if stage.freeze_document else document
    return Trained(query, trained_document, trainable, metrics, info_nce.temperature, model)


def _train_query(context: Context, stage: Joint) -> Trained:
    """Train the query encoder alone: the documents' vectors are computed once, as Stage I's."""
    rows = context.pair_rows(stage.hard_negatives)
    documents = [name for name in rows.text_columns().column_names if name != "query"]
    vectors = [stored_vectors(context, rows.columns[name], name) for name in documents]
    query = towers.load(context.query)
    trainable = towers.make_trainable(query, side="query", lora=context.run.query.lora is not None)
    info_nce = info_nce_of(stage)
    loss = embedding_loss(query, FrozenDocuments(info_nce), stage)
    collator = TeacherCollator(
        *vectors,
        preprocess_fn=query.preprocess,
        prompts={"query": context.run.query.prompt},
        max_length=stage.max_tokens,
    )
    job = context.job(weights=rows.weights, collator=collator)
    metrics = fit(query, loss, rows.select("query", "label"), job)
    joined = towers.pair(query, towers.load(context.document))
    return Trained(query, None, {"query": trainable}, metrics, info_nce.temperature, joined)
