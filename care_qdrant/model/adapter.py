"""Merge a LoRA adapter into the weights of its base, one tensor at a time (extra ``ingest``).

A document encoder of 8 billion parameters is merged with the memory of one file of its weights: W + s B A in float32,
stored in the dtype of the base.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from care_qdrant.errors import IncompleteModel, ModelError

if TYPE_CHECKING:
    from torch import Tensor

CONFIG_FILE = "adapter_config.json"
_WEIGHTS_FILE = "adapter_model.safetensors"
_PLAIN = {"use_dora": False, "fan_in_fan_out": False, "bias": "none"}
"""Settings of peft that a sum of products honours; any other value is refused."""
_EMPTY = ("rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication", "trainable_token_indices")


def merge_adapter(base: Path, adapter: Path, folder: Path) -> None:
    """Write the weights of a base with an adapter merged into them, in as many files as the base has.

    Args:
        base: A transformers model in safetensors files.
        adapter: A LoRA adapter as peft saves it.
        folder: Where the merged files go; it exists.

    Raises:
        IncompleteModel: A file of weights is missing.
        ModelError: The adapter is no plain LoRA, or belongs to another base.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    scale = _scale(adapter)
    weights = {_stem(name): tensor for name, tensor in load_file(_require(adapter / _WEIGHTS_FILE)).items()}
    unused = set(weights)
    for shard in weight_files(base):
        tensors: dict[str, Tensor] = {}
        with safe_open(shard, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118  # no mapping
                tensors[name] = stored.get_tensor(name)
                module = _stem(name).removesuffix(".weight")
                names = [f"{module}.lora_{factor}.weight" for factor in "AB"]
                if all(factor in weights for factor in names):
                    down, up = (weights[factor].float() for factor in names)
                    merged = tensors[name].float() + scale * (up @ down)
                    tensors[name] = merged.to(tensors[name].dtype)
                    unused -= set(names)
        save_file(tensors, folder / shard.name, metadata={"format": "pt"})
    if unused:
        raise ModelError(f"{adapter}: adapts {sorted(unused)[0]!r}, which {base} does not have; give its own base")


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model, in the order of its index.

    Raises:
        IncompleteModel: There is none, or one that the index names is missing.
    """
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [_require(folder / "model.safetensors")]
    names: Iterable[str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    return [_require(folder / name) for name in dict.fromkeys(names)]


def _scale(adapter: Path) -> float:
    config: dict[str, Any] = json.loads(_require(adapter / CONFIG_FILE).read_text(encoding="utf-8"))
    unknown = [key for key, plain in _PLAIN.items() if config.get(key, plain) != plain]
    unknown += [key for key in _EMPTY if config.get(key)]
    if config.get("peft_type", "LORA") != "LORA" or unknown:
        raise ModelError(f"{adapter}: is no plain LoRA adapter ({', '.join(unknown)} set); merge it with peft first")
    rank: float = config["r"]
    return float(config["lora_alpha"]) / (rank**0.5 if config.get("use_rslora") else rank)


def _stem(name: str) -> str:
    """Return a parameter's name without the prefixes that wrapping models add."""
    return name.removeprefix("base_model.model.").removeprefix("model.")


def _require(path: Path) -> Path:
    if not path.is_file():
        raise IncompleteModel(f"{path} is missing; only safetensors files are read")
    return path
