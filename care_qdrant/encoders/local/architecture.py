"""The published gte-multilingual family without remote code: ``model_type: new`` read as transformers' own ``gte``.

Those checkpoints name Python files on the hub that would have to be run. transformers has the same architecture, with
the mapping of the key names built in; only the configuration has to be translated. Unknown settings are
refused: dropping them would silently change vectors.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from care_qdrant.errors import ModelError

_PUBLISHED = "new"
_NATIVE = "gte"
_REQUIRED = {"layer_norm_type": "layer_norm", "position_embedding_type": "rope", "logn_attention_scale": False}
"""The settings of the family that transformers' ``gte`` implements; it has no others."""
_DROPPED = (
    *_REQUIRED,
    "auto_map",
    "rope_scaling",
    "rope_theta",
    "logn_attention_clip1",
    "pack_qkv",
    "unpad_inputs",
    "use_memory_efficient_attention",
)


@contextmanager
def native_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a folder from which transformers loads a saved model without remote code.

    Args:
        folder: A transformers or sentence-transformers model.

    Yields:
        The folder itself, or, for ``model_type: new``, a temporary folder of links with a translated configuration. It
        is gone after the block: load within, and save the model elsewhere.

    Raises:
        ModelError: The configuration has a setting that transformers' own architecture lacks.
    """
    folder = Path(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if config.get("model_type") != _PUBLISHED:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="care-native-") as temporary:
        native = Path(temporary) / folder.resolve().name
        native.mkdir()
        for entry in folder.iterdir():
            if entry.name != "config.json" and entry.suffix != ".py":
                (native / entry.name).symlink_to(entry.resolve())
        (native / "config.json").write_text(json.dumps(native_config(config, path)), encoding="utf-8")
        yield native


def native_config(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Translate a configuration of the published family."""
    for key, expected in _REQUIRED.items():
        if config.get(key, expected) != expected:
            raise ModelError(
                f"{path}: {key} is {config[key]!r}, and transformers' own {_NATIVE!r} has {expected!r} only; this "
                "checkpoint cannot be read without running its code"
            )
    kept = {key: value for key, value in config.items() if key not in _DROPPED}
    names = [name.replace("New", "Gte", 1) for name in config.get("architectures") or ()]
    return {**kept, "model_type": _NATIVE, "architectures": names, "rope_parameters": _rope(config, path)}


def _rope(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the rotary embedding as transformers describes it.

    The family's ``ntk`` scaling by ``factor`` multiplies the base by it, and divides all frequencies by
    ``factor ** (2 / head size)``: a default embedding of the larger base with linear scaling.
    """
    theta, scaling = float(config.get("rope_theta", 10_000.0)), config.get("rope_scaling")
    if scaling is None:
        return {"rope_type": "default", "rope_theta": theta}
    kind, factor = scaling.get("type", scaling.get("rope_type")), scaling.get("factor")
    if kind != "ntk" or factor is None or scaling.get("mixed_b") is not None:
        raise ModelError(f"{path}: rope_scaling is {scaling!r}; expected none, or type 'ntk' with a factor alone")
    head_size = config["hidden_size"] // config["num_attention_heads"]
    return {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / head_size)}
