"""Rewrite saved weights one tensor at a time: merge an adapter, change the dtype.

A document encoder of 8 billion parameters is written with the memory of one of its tensors (extra ``ingest``).
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from care_qdrant.encoders.local.weights import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    INDEX,
    INT8,
    SCALE,
    adapter_name,
    check_adapter,
    read_header,
    read_json,
    weight_files,
)
from care_qdrant.errors import ModelError
from care_qdrant.model.export.int8 import MIN_TABLE_ROWS

if TYPE_CHECKING:
    import torch

_HONOURED = frozenset(
    [
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_alpha",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "use_rslora",
    ]
)
"""Settings of peft that a merge represents, or that say how the training began (`check_adapter` judges that).

Any other one that is set is refused: versions of peft to come add settings that change what an adapter computes.
"""


def merge_adapter(base: Path, adapter: Path, folder: Path, dtype: "torch.dtype | None" = None) -> None:
    """Write the weights of a base with an adapter merged into them, in as many files as the base has.

    W + s B A in float32, stored in the dtype of the base.
    """
    from safetensors.torch import load_file

    scale = _scale(adapter)
    check_adapter(adapter, base)
    weights = {adapter_name(name): tensor for name, tensor in load_file(adapter / ADAPTER_WEIGHTS).items()}
    unused = set(weights)

    def merged(name: str, tensor: "torch.Tensor") -> "torch.Tensor":
        module = adapter_name(name).removesuffix(".weight")
        names = [f"{module}.lora_{factor}.weight" for factor in "AB"]
        if not all(factor in weights for factor in names):
            return tensor
        down, up = (weights[factor].float() for factor in names)
        unused.difference_update(names)
        return tensor.float().addmm_(up, down, alpha=scale)

    write_weights(base, folder, merged, dtype)
    if unused:
        raise ModelError(f"{adapter}: adapts {sorted(unused)[0]!r}, which {base} does not have; give its own base")


def write_weights(
    source: Path,
    folder: Path,
    change: "Callable[[str, torch.Tensor], torch.Tensor] | None" = None,
    dtype: "torch.dtype | None" = None,
) -> None:
    """Write the safetensors files of a model into another folder, with their index, each tensor changed on its way."""
    for file in weight_files(source):
        rewrite_weights(file, folder / file.name, change, dtype)
    if (source / INDEX).is_file():
        shutil.copyfile(source / INDEX, folder / INDEX)


def to_int8(folder: Path) -> None:
    """Round the matrices of a saved model to 8 bits, one factor for each row, in the place of its float weights.

    They take a quarter of the size. Tables of less than `MIN_TABLE_ROWS` rows stay as they are, as in the graphs of
    `model.export.int8`, and so does everything that is not a matrix.
    """
    import torch
    from safetensors.torch import load_file, save_file

    written: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        for name, tensor in load_file(file).items():
            if tensor.ndim != 2 or ("embeddings" in name and len(tensor) < MIN_TABLE_ROWS):
                written[name] = tensor.float()
                continue
            scale = tensor.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-20) / 127
            written[name], written[name + SCALE] = (tensor.float() / scale).round().to(torch.int8), scale
        file.unlink()
    (folder / INDEX).unlink(missing_ok=True)
    save_file(written, folder / INT8, metadata={"format": "pt"})


def rewrite_weights(
    source: str | Path,
    target: str | Path,
    change: "Callable[[str, torch.Tensor], torch.Tensor] | None" = None,
    dtype: "torch.dtype | None" = None,
) -> None:
    """Rewrite a safetensors file, with one tensor at a time in memory.

    Args:
        source: A safetensors file.
        target: Another file.
        change: Returns the new tensor for a name and its tensor; the same shape, any dtype.
        dtype: Type of the floats that are written; None keeps that of each tensor.
    """
    import torch
    from safetensors import safe_open

    source, target = Path(source), Path(target)
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    header, _ = read_header(source)
    stored = {name: entry for name, entry in header.items() if name != "__metadata__"}
    floats = {"F64", *kinds.values()}
    outcome = {
        name: kinds[dtype] if dtype is not None and entry["dtype"] in floats else entry["dtype"]
        for name, entry in stored.items()
    }
    sizes = {
        name: (entry["data_offsets"][1] - entry["data_offsets"][0])
        * _BYTES.get(outcome[name], 1)
        // _BYTES.get(entry["dtype"], 1)
        for name, entry in stored.items()
    }
    # Types of many bytes a value first, so that each tensor begins at a multiple of its own size.
    order = sorted(stored, key=lambda name: (-_BYTES.get(outcome[name], 1), stored[name]["data_offsets"][0]))
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in order:
        place = [position, position := position + sizes[name]]
        entries[name] = {"dtype": outcome[name], "shape": stored[name]["shape"], "data_offsets": place}
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with safe_open(source, framework="pt") as tensors, target.open("wb") as stream:
        stream.write(len(head).to_bytes(8, "little") + head)
        for name in order:
            tensor = tensors.get_tensor(name)
            kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
            tensor = tensor if change is None else change(name, tensor)
            stream.write(tensor.to(kind).contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _scale(adapter: Path) -> float:
    config: dict[str, Any] = read_json(adapter / ADAPTER_CONFIG)
    unknown = sorted(key for key, value in config.items() if value and value != "none" and key not in _HONOURED)
    if config.get("peft_type", "LORA") != "LORA" or unknown:
        raise ModelError(f"{adapter}: is not a plain LoRA adapter ({', '.join(unknown)} set); merge it with peft first")
    rank: float = config["r"]
    return float(config["lora_alpha"]) / (rank**0.5 if config.get("use_rslora") else rank)


_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
