"""Rewrite an exported float32 graph so that its matrix products run on int8 (extra ``onnx``).

onnxruntime's own dynamic quantization has one activation scale per tensor, so a text's vector depends on the texts and
the padding that it is batched with. Here each token has its own scale and each weight column its own::

    (x W)[token, column]  ≈  max|x[token]| / 127 · (q(x)[token] · q(W)[column]) · max|W[column]| / 127

The integer product is exact, so a token's result depends on that token alone. Products that read the same input (query,
key, value) become one. Embedding tables keep one scale per row. The file has about one byte per parameter.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from care_qdrant.errors import ModelError, needs_extra

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

_LEVELS = 127
_MIN_TABLE_ROWS = 1_024
"""Smaller tables (positions, token types) are not worth the precision."""

# Activations are unsigned with the zero at 128: onnxruntime has fast kernels for unsigned × signed on every x86, while
# signed × signed falls back to one that is ten times slower. Adding 128.5 makes the truncating cast round.
_CONSTANTS: dict[str, npt.NDArray[Any]] = {
    "int8.last_axis": np.array([-1], np.int64),
    "int8.levels": np.array(_LEVELS, np.float32),
    "int8.one": np.array(1, np.float32),
    "int8.round": np.array(128.5, np.float32),
    "int8.smallest": np.array(1e-20, np.float32),
    "int8.zero_point": np.array(128, np.uint8),
}


def quantize(fp32_file: Path, int8_file: Path) -> None:
    """Write the int8 rendering of a float32 graph.

    Raises:
        MissingExtra: onnx is not installed.
        ModelError: the graph has no matrix product with a constant weight.
    """
    with needs_extra("onnx", "the int8 export"):
        import onnx

    model = onnx.load(fp32_file)
    _Rewrite(model.graph).apply()
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    try:
        onnx.save(model, int8_file)
    except ValueError as error:
        raise ModelError(f"{fp32_file}: its int8 rendering cannot be written ({error})") from error


class _Rewrite:
    """Collects the nodes and tensors of the new graph."""

    def __init__(self, graph: "GraphProto") -> None:
        from onnx import numpy_helper

        self._graph = graph
        self._nodes: list[NodeProto] = []
        self._tensors: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        self._to_array = numpy_helper.to_array
        for name, value in _CONSTANTS.items():
            self._add_tensor(name, value)

    def apply(self) -> None:
        """Replace the graph's nodes and tensors."""
        products = self._products_by_input()
        for node in self._graph.node:
            if self._is_product(node):
                if node is products[node.input[0]][0]:
                    self._add_int8_product(products[node.input[0]])
            elif self._is_table_lookup(node):
                self._add_int8_lookup(node)
            else:
                self._nodes.append(node)
        used = {name for node in self._nodes for name in node.input}
        del self._graph.node[:], self._graph.initializer[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend(tensor for name, tensor in self._tensors.items() if name in used)

    def _products_by_input(self) -> dict[str, list["NodeProto"]]:
        groups: dict[str, list[NodeProto]] = defaultdict(list)
        for node in self._graph.node:
            if self._is_product(node):
                groups[node.input[0]].append(node)
        return groups

    def _is_product(self, node: "NodeProto") -> bool:
        weight = self._tensors.get(node.input[1]) if node.op_type == "MatMul" else None
        return weight is not None and len(weight.dims) == 2

    def _is_table_lookup(self, node: "NodeProto") -> bool:
        table = self._tensors.get(node.input[0]) if node.op_type == "Gather" else None
        return table is not None and len(table.dims) == 2 and table.dims[0] >= _MIN_TABLE_ROWS

    def _add_int8_product(self, products: Sequence["NodeProto"]) -> None:
        """Give all products of one input as one integer product, split again where there are several."""
        name = products[0].output[0]
        weights = [self._to_array(self._tensors[product.input[1]]) for product in products]
        rounded, scale = _quantize(np.concatenate(weights, axis=1), axis=0)
        largest, levels = self._add_row_quantization(products[0].input[0], name)
        operands = [
            levels,
            self._add_tensor(f"{name}.weight", rounded),
            "int8.one",
            self._add_tensor(f"{name}.weight_scale", scale.reshape(-1) / _LEVELS),
            "int8.zero_point",
        ]
        product = self._add("MatMulIntegerToFloat", operands, f"{name}.product", domain="com.microsoft")
        outputs = [node.output[0] for node in products]
        if len(outputs) == 1:
            self._add("Mul", [product, largest], outputs[0])
            return
        scaled = self._add("Mul", [product, largest], f"{name}.scaled")
        widths = self._add_tensor(f"{name}.widths", np.array([weight.shape[1] for weight in weights], np.int64))
        self._add("Split", [scaled, widths], *outputs, axis=-1)

    def _add_row_quantization(self, source: str, name: str) -> tuple[str, str]:
        """Give the largest magnitude of each row, and the row in levels of a 127th of it."""
        magnitude = self._add("Abs", [source], f"{name}.magnitude")
        largest = self._add("ReduceMax", [magnitude, "int8.last_axis"], f"{name}.largest_or_zero", keepdims=1)
        largest = self._add("Max", [largest, "int8.smallest"], f"{name}.largest")
        factor = self._add("Div", ["int8.levels", largest], f"{name}.factor")
        scaled = self._add("Mul", [source, factor], f"{name}.source_scaled")
        shifted = self._add("Add", [scaled, "int8.round"], f"{name}.source_shifted")
        return largest, self._add("Cast", [shifted], f"{name}.source_levels", to=_uint8())

    def _add_int8_lookup(self, lookup: "NodeProto") -> None:
        name, indices = lookup.output[0], lookup.input[1]
        rounded, scale = _quantize(self._to_array(self._tensors[lookup.input[0]]), axis=1)
        levels = self._add("Gather", [self._add_tensor(f"{name}.table", rounded), indices], f"{name}.levels")
        factor = self._add("Gather", [self._add_tensor(f"{name}.table_scale", scale), indices], f"{name}.scale")
        as_float = self._add("CastLike", [levels, factor], f"{name}.unscaled")
        self._add("Mul", [as_float, factor], name)

    def _add(self, operator: str, inputs: Sequence[str], *outputs: str, domain: str = "", **attributes: int) -> str:
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


def _uint8() -> int:
    from onnx import TensorProto

    return int(TensorProto.UINT8)
