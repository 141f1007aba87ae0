"""Rewrite an exported float32 graph so that its matrix products run on int8 (extra ``onnx``).

onnxruntime's own dynamic quantization has one activation scale per tensor, so a text's vector depends on the texts and
the padding that it is batched with. Here each token has its own scale and each weight column its own::

    (x W)[token, column]  ≈  max|x[token]| / 127 · (q(x)[token] · q(W)[column]) · max|W[column]| / 127

The integer product is exact, so a token's result depends on that token alone. Products of one input (query, key, value)
share its quantization. Embedding tables keep one scale per row. The file has about one byte per parameter.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from care_qdrant.errors import ModelError, needs_extra

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

_LEVELS = 127
MIN_TABLE_ROWS = 1_024
"""Rows of the smallest table that becomes int8. Smaller ones (positions, token types) save too little for what they
lose, unless there is nothing else."""

# Activations are unsigned with the zero at 128: onnxruntime has fast kernels for unsigned × signed on every x86, while
# signed × signed is ten times slower.
_CONSTANTS: dict[str, npt.NDArray[Any]] = {
    "int8.last_axis": np.array([-1], np.int64),
    "int8.one": np.array(1, np.float32),
    "int8.per_level": np.array(1 / _LEVELS, np.float32),
    "int8.smallest": np.array(1e-20, np.float32),
    "int8.zero_point": np.array(128, np.uint8),
}


def quantize(fp32_file: Path, int8_file: Path) -> None:
    """Write the int8 rendering of a float32 graph."""
    with needs_extra("onnx", "the int8 export"):
        import onnx

    model = onnx.load(fp32_file)
    if not _Rewrite(model.graph).apply():
        raise ModelError(
            f"{fp32_file}: has no matrix product with a constant weight and no table, so int8 would change nothing"
        )
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, int8_file)


class _Rewrite:
    """Collects the nodes and tensors of the new graph."""

    def __init__(self, graph: "GraphProto") -> None:
        from onnx import numpy_helper

        self._graph = graph
        self._nodes: list[NodeProto] = []
        self._quantized: dict[str, tuple[str, str]] = {}
        self._tensors: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        self._to_array = numpy_helper.to_array
        self._zero = numpy_helper.from_array(np.array([128], np.uint8))
        self._min_table_rows = MIN_TABLE_ROWS
        if not any(self._is_product(node) or self._is_table_lookup(node) for node in graph.node):
            self._min_table_rows = 1
        for name, value in _CONSTANTS.items():
            self._add_tensor(name, value)

    def apply(self) -> int:
        """Replace the graph's nodes and tensors, and return how many products and tables now are int8."""
        changed = 0
        for node in self._graph.node:
            if self._is_product(node):
                self._add_int8_product(node)
            elif self._is_table_lookup(node):
                self._add_int8_lookup(node)
            else:
                self._nodes.append(node)
                continue
            changed += 1
        used = {name for node in self._nodes for name in node.input}
        del self._graph.node[:], self._graph.initializer[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend(tensor for name, tensor in self._tensors.items() if name in used)
        return changed

    def _is_product(self, node: "NodeProto") -> bool:
        weight = self._tensors.get(node.input[1]) if node.op_type == "MatMul" else None
        return weight is not None and len(weight.dims) == 2

    def _is_table_lookup(self, node: "NodeProto") -> bool:
        table = self._tensors.get(node.input[0]) if node.op_type == "Gather" else None
        return table is not None and len(table.dims) == 2 and table.dims[0] >= self._min_table_rows

    def _add_int8_product(self, product: "NodeProto") -> None:
        (source, weight), name = product.input, product.output[0]
        rounded, scale = _quantize(self._to_array(self._tensors[weight]), axis=0)
        if source not in self._quantized:
            self._quantized[source] = self._add_row_quantization(source, width=len(rounded))
        levels, level = self._quantized[source]
        operands = [
            levels,
            self._add_tensor(f"{name}.weight", rounded),
            "int8.one",
            self._add_tensor(f"{name}.weight_scale", scale.reshape(-1)),
            "int8.zero_point",
        ]
        scaled = self._add("MatMulIntegerToFloat", operands, f"{name}.of_levels", domain="com.microsoft")
        self._add("Mul", [scaled, level], name)

    def _add_row_quantization(self, source: str, width: int) -> tuple[str, str]:
        """Return each row in 255 levels, and the value of one level of it."""
        magnitude = self._add("Abs", [source], f"{source}.magnitude")
        largest = self._add("ReduceMax", [magnitude, "int8.last_axis"], f"{source}.largest_or_zero", keepdims=1)
        largest = self._add("Max", [largest, "int8.smallest"], f"{source}.largest")
        level = self._add("Mul", [largest, "int8.per_level"], f"{source}.level")
        shape = self._add("Shape", [level], f"{source}.rows")
        zero = self._add("ConstantOfShape", [shape], f"{source}.zero", value=self._zero)
        levels = self._add("QuantizeLinear", [source, level, zero], f"{source}.levels", axis=-1, block_size=width)
        return levels, level

    def _add_int8_lookup(self, lookup: "NodeProto") -> None:
        name, indices = lookup.output[0], lookup.input[1]
        rounded, scale = _quantize(self._to_array(self._tensors[lookup.input[0]]), axis=1)
        levels = self._add("Gather", [self._add_tensor(f"{name}.table", rounded), indices], f"{name}.row_levels")
        factor = self._add("Gather", [self._add_tensor(f"{name}.table_scale", scale), indices], f"{name}.row_scale")
        as_float = self._add("CastLike", [levels, factor], f"{name}.row_unscaled")
        self._add("Mul", [as_float, factor], name)

    def _add(self, operator: str, inputs: Sequence[str], *outputs: str, domain: str = "", **attributes: Any) -> str:
        from onnx import helper

        node = helper.make_node(operator, inputs, outputs, domain=domain)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self._nodes.append(node)
        return outputs[0]

    def _add_tensor(self, name: str, value: npt.NDArray[Any]) -> str:
        from onnx import numpy_helper

        self._tensors[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name


def _quantize(weight: npt.NDArray[np.float32], axis: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Round to int8 with one scale per column (axis 0) or per row (axis 1)."""
    scale = np.maximum(np.abs(weight).max(axis=axis, keepdims=True), 1e-20) / _LEVELS
    return np.rint(weight / scale).astype(np.int8), scale.astype(np.float32)
