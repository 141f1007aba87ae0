"""Stage ``joint`` (Stage II): both encoders on retrieval data, queries against the other side's documents."""

from care_trainer import towers
from care_trainer.augment import PairCollator
from care_trainer.config import Joint
from care_trainer.fitting import fit
from care_trainer.losses import EmbeddingLoss
from care_trainer.stages.context import Context, Trained
from care_trainer.stages.contrastive import info_nce_of


def train_joint(context: Context) -> Trained:
    """Train both encoders with Asym-InfoNCE [4.4, equation (1)], one learning rate or one a side."""
    stage, run = context.stage, context.run
    assert isinstance(stage, Joint)
    query, document = towers.load(context.query), towers.load(context.document)
    trainable = {"query": towers.make_trainable(query, side="query", lora=run.query.lora is not None)}
    if stage.freeze_document:
        towers.freeze(document)
    else:
        trainable["document"] = towers.make_trainable(document, side="document", lora=run.document.lora is not None)
    model, info_nce = towers.pair(query, document), info_nce_of(stage)
    loss = EmbeddingLoss(
        model,
        info_nce,
        mini_batch_size=stage.mini_batch_size,
        mini_batch_tokens=stage.mini_batch_tokens,
        cached=stage.cached,
        token_dropout=stage.token_dropout,
    )
    rows = context.pair_rows(stage.hard_negatives)
    columns = rows.text_columns()
    routes = {column: "query" if column == "query" else "document" for column in columns.column_names}
    prompts = {column: run.query.prompt if side == "query" else run.document.prompt for column, side in routes.items()}
    job = context.job(
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
