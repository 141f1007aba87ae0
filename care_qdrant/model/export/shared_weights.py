"""Let an exported graph read its weights from the safetensors files next to it (extra ``onnx``).

A second copy of the weights would double the folder, and would not be under its fingerprint. The safetensors format is
plain arrays at known offsets, which is what an external tensor of ONNX names. Half precision is cast, and a linear
layer's weight is transposed, when onnxruntime loads the graph.
"""

import copy
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from torch import Tensor
from transformers import BertModel
from transformers.models.bert.modeling_bert import BertLayer

from care_qdrant.encoders.local.torch import cuts_unit_vectors
from care_qdrant.encoders.local.weights import read_header

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

_MIN_SHARED = 1_024
"""Elements of the smallest tensor that is shared; smaller ones stay in the graph."""
_NUMPY_TYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I8": np.dtype(np.int8),
}

BERT_OPSET = 23
"""Version of ONNX's operators for a BERT: the first with an attention operator."""
# From 23 on the exporter writes rotary embeddings that onnxruntime 1.31 refuses.
OPSET = 21
"""Version of ONNX's operators for other architectures."""


class QueryGraph(torch.nn.Module):
    """All modules of a query encoder, pooling and normalisation included."""

    def __init__(self, tower: SentenceTransformer) -> None:
        super().__init__()
        self.tower = copy.deepcopy(tower)
        self.normalises = not (isinstance(tower[-1], Normalize) or cuts_unit_vectors(tower))
        self.opset = OPSET
        transformer, following = self.tower[0], self.tower[1]
        reads_first_only = isinstance(following, Pooling) and following.pooling_mode == "cls"
        if is_static(tower):
            table: Any = transformer.embedding
            self.tower[0] = TokenMean(table.weight)
        elif isinstance(transformer.model, BertModel):
            self.opset = BERT_OPSET
            layers: Any = transformer.model.encoder.layer
            for number, layer in enumerate(layers):
                is_last = number == len(layers) - 1
                layers[number] = FastBertLayer(layer, first_token_only=is_last and reads_first_only)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return (batch, dim) from token ids and mask, both (batch, length)."""
        features: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        for module in self.tower:
            features = module(features)
        vectors: Tensor = features["sentence_embedding"]
        return torch.nn.functional.normalize(vectors) if self.normalises else vectors


def is_static(tower: SentenceTransformer) -> bool:
    """Return whether an encoder is a table of token vectors, without layers."""
    return isinstance(tower[0], StaticEmbedding)


class TokenMean(torch.nn.Module):
    """A static encoder over padded tokens: the mean of the vectors of the unmasked tokens."""

    def __init__(self, table: torch.nn.Parameter) -> None:
        super().__init__()
        self.table = table

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Add the means, (batch, dim), to token ids and mask."""
        mask = features["attention_mask"].to(self.table.dtype)
        total = (torch.nn.functional.embedding(features["input_ids"], self.table) * mask[..., None]).sum(dim=1)
        return {**features, "sentence_embedding": total / mask.sum(dim=1, keepdim=True)}


class FastBertLayer(torch.nn.Module):
    """A layer of a BERT with the same result for less work.

    Attention is one ONNX operator over (batch, length, hidden), so nothing is transposed between the operators. The
    last layer of a model that is pooled at its first token computes only that token: the others serve as keys and
    values, which saves five sixths of the layer. `OnnxEncoder` pads on the right, so the first token is the first
    column.

    Projections of zeros are left out: a table of token vectors that is stored as a BERT has two in
    each layer, and its graph is then a lookup, 4 to 15 times as fast.
    """

    def __init__(self, layer: BertLayer, *, first_token_only: bool) -> None:
        super().__init__()
        self.layer, self.first_token_only = layer, first_token_only
        self.adds_attention = not _is_zero(layer.attention.output.dense)
        self.adds_products = not _is_zero(layer.output.dense)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return (batch, length or 1, hidden) from (batch, length, hidden) and a mask of (batch, 1, length, length)."""
        first, second = cast(Any, self.layer.attention.output), cast(Any, self.layer.output)
        states = hidden_states[:, :1] if self.first_token_only else hidden_states
        if self.adds_attention:
            states = first(self._context(states, hidden_states, attention_mask), states)
        else:
            states = first.LayerNorm(states)
        if self.adds_products:
            return second(self.layer.intermediate(states), states)  # type: ignore[no-any-return]
        return second.LayerNorm(states)  # type: ignore[no-any-return]

    def _context(self, queries: Tensor, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        attention = self.layer.attention.self
        return torch.onnx.ops.attention(
            attention.query(queries),
            attention.key(hidden_states),
            attention.value(hidden_states),
            attention_mask[:, :, :1] if self.first_token_only else attention_mask,
            q_num_heads=attention.num_attention_heads,
            kv_num_heads=attention.num_attention_heads,
            scale=attention.scaling,
        )[0]


def _is_zero(projection: torch.nn.Linear) -> bool:
    return not bool(projection.weight.any() or projection.bias.any())


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of a safetensors file."""

    file: str
    """Path relative to the folder."""
    offset: int
    """First byte in the file."""
    length: int
    """Length in bytes."""
    shape: tuple[int, ...]
    kind: str
    is_transposed: bool
    """Whether the graph uses its transpose."""


def share_weights(model: "ModelProto", folder: Path) -> None:
    """Replace float32 and int8 weights of a graph by references to equal tensors of the folder's safetensors files."""
    from onnx import helper, numpy_helper

    stored = dict(_index(folder))
    shared = {helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in (np.float32, np.int8)}
    tensors: list[TensorProto] = []
    nodes: list[NodeProto] = []
    for tensor in model.graph.initializer:
        is_large = math.prod(tensor.dims) >= _MIN_SHARED and tensor.data_type in shared
        match = stored.get(_digest(numpy_helper.to_array(tensor))) if is_large else None
        if match is None:
            tensors.append(tensor)
        else:
            tensors.append(_external(tensor.name, match))
            nodes += _restore(tensor.name, match)
    nodes += model.graph.node
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend(tensors)
    model.graph.node.extend(nodes)


def _index(folder: Path) -> Iterator[tuple[str, _Stored]]:
    """Yield the large tensors of a folder by digest, half precision as float32, and the transposes of the matrices."""
    for path in sorted(folder.rglob("*.safetensors")):
        header, start = read_header(path)
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
            if array.ndim == 2:
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
    """Return the nodes that restore a tensor of the graph from the stored one."""
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
