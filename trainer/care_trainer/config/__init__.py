"""The settings of a run: TOML, parsed into strict frozen models before anything is loaded.

`run` and `stages` hold the models, `load` parses a file, `presets` has the paper's comparisons.
"""

from care_trainer.config.load import find_config, load_run, shipped_configs
from care_trainer.config.run import (
    Data,
    Diversify,
    Evaluation,
    Export,
    Lora,
    Run,
    Scratch,
    StoredDocuments,
    Task,
    Tower,
    Vocabulary,
)
from care_trainer.config.stages import (
    STAGE_TYPES,
    Align,
    Contrastive,
    Geometry,
    Joint,
    Prune,
    RetroMae,
    Side,
    Stage,
    Static,
    stage_name,
)

__all__ = [
    "STAGE_TYPES",
    "Align",
    "Contrastive",
    "Data",
    "Diversify",
    "Evaluation",
    "Export",
    "Geometry",
    "Joint",
    "Lora",
    "Prune",
    "RetroMae",
    "Run",
    "Scratch",
    "Side",
    "Stage",
    "Static",
    "StoredDocuments",
    "Task",
    "Tower",
    "Vocabulary",
    "find_config",
    "load_run",
    "shipped_configs",
    "stage_name",
]
