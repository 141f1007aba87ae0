"""Stage ``prune``: the query encoder becomes the first layers of the document encoder (baselines of table 7)."""

from sentence_transformers import SentenceTransformer
from torch.nn import ModuleList

from care_qdrant.errors import InputError, counted
from care_trainer.config import Prune
from care_trainer.models import towers
from care_trainer.stages.context import Context, Trained


def prune_document(context: Context) -> Trained:
    """Keep the first layers of the newest document encoder, and make it the query encoder."""
    stage = context.stage
    assert isinstance(stage, Prune)
    document = towers.load_merged(context.document)
    model = towers.transformer_of(document).model
    # Decoders keep their layers in `layers`, BERT and its kin in `encoder.layer`.
    parent, name = (model, "layers") if hasattr(model, "layers") else (getattr(model, "encoder", model), "layer")
    layers = getattr(parent, name, None)
    if not isinstance(layers, ModuleList) or len(layers) <= stage.layers:
        has = counted(len(layers), "layer") if isinstance(layers, ModuleList) else "no list of layers"
        raise InputError(f"stage prune: the document encoder has {has}; expected more than {stage.layers}")
    setattr(parent, name, layers[: stage.layers])
    model.config.num_hidden_layers = stage.layers
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[: stage.layers]
    query = SentenceTransformer(
        modules=list(document.children()), prompts={"query": context.run.query.prompt}, similarity_fn_name="cosine"
    )
    return Trained(query, None, {}, {}, None, towers.pair(query, towers.load(context.document)))
