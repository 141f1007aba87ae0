"""Let an exported graph read its weights from the safetensors files beside it (extra ``onnx``).

A second copy of the weights would double the folder, and would not be under its fingerprint. The safetensors format is
plain arrays at known offsets, which is what an external tensor of ONNX names. Half precision is cast, and a linear
layer's weight is transposed, when onnxruntime loads the graph.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

_MIN_SHARED = 1_024
"""Elements; smaller tensors stay in the graph."""
_NUMPY_TYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I8": np.dtype(np.int8),
}


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of a safetensors file."""

    file: str
    """Relative to the folder."""
    offset: int
    length: int
    """Bytes, both."""
    shape: tuple[int, ...]
    kind: str
    is_transposed: bool
    """Whether the graph wants its transpose."""


def share_weights(model: "ModelProto", folder: Path) -> None:
    """Replace float32 and int8 weights of a graph by references to equal tensors of the folder's safetensors files."""
    from onnx import helper, numpy_helper

    stored = dict(_index(folder))
    shared = {helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in (np.float32, np.int8)}
    tensors: list[TensorProto] = []
    nodes: list[NodeProto] = []
    for tensor in model.graph.initializer:
        is_large = math.prod(tensor.dims) >= _MIN_SHARED and tensor.data_type in shared
        found = stored.get(_digest(numpy_helper.to_array(tensor))) if is_large else None
        if found is None:
            tensors.append(tensor)
        else:
            tensors.append(_external(tensor.name, found))
            nodes += _restore(tensor.name, found)
    nodes += model.graph.node
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend(tensors)
    model.graph.node.extend(nodes)


def _index(folder: Path) -> Iterator[tuple[str, _Stored]]:
    """Return the large tensors of a folder, halves as float32, and the transposes of those matrices, by digest."""
    for path in sorted(folder.rglob("*.safetensors")):
        with path.open("rb") as stream:
            start = 8 + int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(start - 8))
        header.pop("__metadata__", None)
        for entry in header.values():
            begin, end = entry["data_offsets"]
            shape = tuple(entry["shape"])
            if entry["dtype"] not in _NUMPY_TYPES or math.prod(shape) < _MIN_SHARED:
                continue
            kind = _NUMPY_TYPES[entry["dtype"]]
            array: npt.NDArray[Any] = np.memmap(path, kind, "r", start + begin, shape)
            if kind != np.int8:
                array = array.astype(np.float32)
            location = (path.relative_to(folder).as_posix(), start + begin, end - begin, shape, entry["dtype"])
            if array.ndim == 2 and kind != np.int8:
                yield _digest(array.T), _Stored(*location, is_transposed=True)
            yield _digest(array), _Stored(*location, is_transposed=False)


def _digest(array: npt.NDArray[Any]) -> str:
    content = np.ascontiguousarray(array)
    return f"{array.dtype} {array.shape} {hashlib.sha256(content.tobytes()).hexdigest()}"


def _external(name: str, stored: _Stored) -> "TensorProto":
    from onnx import TensorProto, helper

    tensor = TensorProto(
        name=f"{name}.stored" if _restore(name, stored) else name,
        dims=stored.shape,
        data_type=helper.np_dtype_to_tensor_dtype(_NUMPY_TYPES[stored.kind]),
        data_location=TensorProto.EXTERNAL,
    )
    for key, value in (("location", stored.file), ("offset", stored.offset), ("length", stored.length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _restore(name: str, stored: _Stored) -> list["NodeProto"]:
    """Return the nodes that make the tensor that the graph wants of the stored one."""
    from onnx import TensorProto, helper

    steps: list[tuple[str, dict[str, Any]]] = []
    if stored.kind not in ("F32", "I8"):
        steps.append(("Cast", {"to": TensorProto.FLOAT}))
    if stored.is_transposed:
        steps.append(("Transpose", {"perm": [1, 0]}))
    names = [f"{name}.stored", *(f"{name}.{operator}" for operator, _ in steps[:-1]), name]
    return [
        helper.make_node(operator, [source], [target], **attributes)
        for (operator, attributes), source, target in zip(steps, names, names[1:], strict=False)
    ]
