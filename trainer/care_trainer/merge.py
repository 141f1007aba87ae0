"""Adapters merged into their base, the way that survives a reload."""

from pathlib import Path

from peft import PeftConfig, PeftModel
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from care_trainer import towers

ADAPTER_FILE = "adapter_config.json"


def merged(folder: Path) -> SentenceTransformer:
    """Load an encoder, with its adapter merged when it has one.

    Merging the adapter of a reloaded model in place looks right and saves garbage: the saved keys carry a prefix, and a
    reload starts from random weights. So a fresh base takes the adapter and is merged outside.
    """
    encoder = towers.load(folder)
    if not (folder / ADAPTER_FILE).exists():
        return encoder
    transformer = towers.transformer_of(encoder)
    config = PeftConfig.from_pretrained(str(folder))
    base = AutoModel.from_pretrained(config.base_model_name_or_path, revision=config.revision)
    transformer.model = PeftModel.from_pretrained(base, str(folder)).merge_and_unload().to(encoder.device)
    return encoder
