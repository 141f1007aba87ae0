"""A query encoder that is a table of token vectors: saved, read and exported to ONNX without torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from care_qdrant.encoders.local.weights import read_json, read_settings, write_json
from care_qdrant.errors import needs_extra
from care_qdrant.types import Vectors

_BASE, _OWN = "sentence_transformers.base.modules", "sentence_transformers.sentence_transformer.modules"
_TYPES = {
    "StaticEmbedding": f"{_OWN}.static_embedding.StaticEmbedding",
    "Dense": f"{_BASE}.dense.Dense",
    "Normalize": f"{_BASE}.normalize.Normalize",
}
_TABLE, _LINEAR, _WEIGHTS = "embedding.weight", "linear.weight", "model.safetensors"
_IDENTITY = "torch.nn.modules.linear.Identity"
_FEATURE = "sentence_embedding"
_SHORTEST = 1e-12
"""Length below which a vector is not made longer, as in torch's ``normalize``."""
_OPSET, _IR_VERSION = 21, 10


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A query encoder whose text vector is the unit mean of the token vectors, mapped by a basis if it has one."""

    tokenizer: Tokenizer
    vectors: Vectors
    """Token vectors, (tokens, width)."""
    basis: Vectors | None = None
    """Rows that span the space of the result, (width, dim); None where it has the table's width."""
    prompt: str = ""

    @classmethod
    def load(cls, folder: Path) -> "TokenTable | None":
        """Read a saved encoder; None for one with other modules, or with weights that are not float32."""
        from safetensors.numpy import load_file

        modules = {module["type"].rsplit(".", 1)[-1]: folder / module["path"] for module in _modules(folder)}
        names = list(modules)
        if names not in (["StaticEmbedding", "Normalize"], ["StaticEmbedding", "Dense", "Normalize"]):
            return None
        table, basis = modules["StaticEmbedding"], None
        if not (table / _WEIGHTS).is_file() or not (table / "tokenizer.json").is_file():
            return None
        vectors = load_file(table / _WEIGHTS).get(_TABLE)
        if vectors is None or vectors.dtype != np.float32:
            return None
        if dense := modules.get("Dense"):
            settings = read_json(dense / "config.json")
            if settings.get("bias", True) or settings.get("use_residual"):
                return None
            if settings.get("activation_function") != _IDENTITY or not (dense / _WEIGHTS).is_file():
                return None
            basis = np.ascontiguousarray(load_file(dense / _WEIGHTS)[_LINEAR].T)
        tokenizer = Tokenizer.from_file(str(table / "tokenizer.json"))
        tokenizer.no_padding()
        return cls(tokenizer, vectors, basis, read_settings(folder)["prompts"].get("query", ""))

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode texts into unit vectors, (texts, dim); zero for a text without tokens."""
        dim = self.vectors.shape[1] if self.basis is None else self.basis.shape[1]
        vectors = np.zeros((len(texts), dim), dtype=np.float32)
        encodings = self.tokenizer.encode_batch([self.prompt + text for text in texts], add_special_tokens=False)
        for row, encoding in enumerate(encodings):
            if encoding.ids:
                mean = self.vectors[encoding.ids].mean(axis=0)
                vector = mean if self.basis is None else mean @ self.basis
                vectors[row] = vector / max(float(np.linalg.norm(vector)), _SHORTEST)
        return vectors

    def save(self, folder: Path) -> None:
        """Write the folder of a sentence-transformers model."""
        from safetensors.numpy import save_file

        names = ["StaticEmbedding", *(["Dense"] if self.basis is not None else []), "Normalize"]
        paths = ["", *(f"{number}_{name}" for number, name in enumerate(names[1:], start=1))]
        for path in paths:
            (folder / path).mkdir(parents=True, exist_ok=True)
        save_file({_TABLE: np.ascontiguousarray(self.vectors)}, folder / _WEIGHTS)
        self.tokenizer.save(str(folder / "tokenizer.json"))
        if self.basis is not None:
            width, dim = self.basis.shape
            save_file({_LINEAR: np.ascontiguousarray(self.basis.T)}, folder / paths[1] / _WEIGHTS)
            settings: dict[str, Any] = {"in_features": width, "out_features": dim, "bias": False}
            names_of_features = {"module_input_name": _FEATURE, "module_output_name": _FEATURE}
            write_json(
                folder / paths[1] / "config.json", settings | {"activation_function": _IDENTITY} | names_of_features
            )
        write_json(folder / paths[-1] / "config.json", {"module_input_name": _FEATURE, "module_output_name": _FEATURE})
        write_json(
            folder / "modules.json",
            [
                {"idx": number, "name": str(number), "path": path, "type": _TYPES[name]}
                for number, (name, path) in enumerate(zip(names, paths, strict=True))
            ],
        )
        write_json(
            folder / "config_sentence_transformers.json",
            {
                "default_prompt_name": None,
                "model_type": "SentenceTransformer",
                "prompts": {"document": "", "query": self.prompt},
                "similarity_fn_name": "cosine",
            },
        )

    def write_graph(self, file: Path) -> None:
        """Write the encoder as a float32 ONNX graph of token ids and mask, both (batch, length)."""
        with needs_extra("onnx", "the ONNX export"):
            import onnx
            from onnx import TensorProto, helper, numpy_helper

        constants: dict[str, npt.NDArray[Any]] = {
            "table": self.vectors,
            "length_axis": np.array([1], np.int64),
            "last_axis": np.array([-1], np.int64),
            "shortest": np.array(_SHORTEST, np.float32),
        }
        steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
            ("Gather", ["table", "input_ids"], "rows", {}),
            ("Cast", ["attention_mask"], "mask", {"to": TensorProto.FLOAT}),
            ("Unsqueeze", ["mask", "last_axis"], "column", {}),
            ("Mul", ["rows", "column"], "counted", {}),
            ("ReduceSum", ["counted", "length_axis"], "total", {"keepdims": 0}),
            ("ReduceSum", ["mask", "length_axis"], "count", {"keepdims": 1}),
            ("Div", ["total", "count"], "mean", {}),
        ]
        if self.basis is not None:
            constants["basis"] = self.basis
            steps.append(("MatMul", ["mean", "basis"], "mapped", {}))
        last = steps[-1][2]
        steps += [
            ("ReduceL2", [last, "last_axis"], "length_or_zero", {"keepdims": 1}),
            ("Max", ["length_or_zero", "shortest"], "length", {}),
            ("Div", [last, "length"], _FEATURE, {}),
        ]
        dim = (self.vectors if self.basis is None else self.basis).shape[1]
        graph = helper.make_graph(
            [helper.make_node(operator, read, [made], **options) for operator, read, made, options in steps],
            "table",
            [
                helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
                for name in ("input_ids", "attention_mask")
            ],
            [helper.make_tensor_value_info(_FEATURE, TensorProto.FLOAT, ["batch", dim])],
            [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        onnx.checker.check_model(model)
        onnx.save(model, str(file))


def _modules(folder: Path) -> list[dict[str, Any]]:
    modules: list[dict[str, Any]] = read_json(folder / "modules.json") if (folder / "modules.json").is_file() else []
    return modules
