from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from care_qdrant.encoders.onnx import int8_saturates, session_options
from care_qdrant.errors import ModelError
from care_qdrant.model.export.int8 import quantize

ROWS, WIDTH = 2_000, 64
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
WEIGHTS = [RNG.normal(size=(WIDTH, 48)).astype(np.float32), RNG.normal(size=(WIDTH, 32)).astype(np.float32)]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Token ids looked up in a table, then two products of the looked-up rows."""
    folder = tmp_path_factory.mktemp("graphs")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["tokens"]),
        helper.make_node("MatMul", ["tokens", "w0"], ["y0"]),
        helper.make_node("MatMul", ["tokens", "w1"], ["y1"]),
    ]
    tensors = [numpy_helper.from_array(TABLE, "table")]
    tensors += [numpy_helper.from_array(weight, f"w{n}") for n, weight in enumerate(WEIGHTS)]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])
    outputs = [
        helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, ["batch", "length", weight.shape[1]])
        for n, weight in enumerate(WEIGHTS)
    ]
    graph = helper.make_graph(nodes, "g", [ids], outputs, tensors)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / "fp32.onnx"
    )
    quantize(folder / "fp32.onnx", folder / "int8.onnx")
    return folder / "fp32.onnx", folder / "int8.onnx"


def run(path: Path, ids: list[list[int]]) -> list[np.ndarray]:
    options = session_options(1, exact_kernels=int8_saturates())
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"ids": np.array(ids, dtype=np.int64)})


def test_products_are_near_the_float_ones(graphs: tuple[Path, Path]) -> None:
    ids = RNG.integers(0, ROWS, size=(3, 7)).tolist()

    for exact, rounded in zip(run(graphs[0], ids), run(graphs[1], ids), strict=True):
        error = np.linalg.norm(exact - rounded) / np.linalg.norm(exact)
        assert 0 < error < 0.02


def test_a_row_does_not_depend_on_its_neighbours_not_even_on_huge_ones(graphs: tuple[Path, Path]) -> None:
    largest = int(np.abs(TABLE).max(axis=1).argmax())
    alone = run(graphs[1], [[5, 6]])
    together = run(graphs[1], [[largest, largest], [5, 6], [7, 8]])

    for one, many in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one[0], many[1])


def test_the_file_has_about_one_byte_per_parameter(tmp_path: Path, graphs: tuple[Path, Path]) -> None:
    assert graphs[1].stat().st_size < 0.3 * graphs[0].stat().st_size


def test_a_row_of_zeros_gives_zeros(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "length", WIDTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "length", 48])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [numpy_helper.from_array(WEIGHTS[0], "w")]
    )
    source = tmp_path / "fp32.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), source)
    quantize(source, tmp_path / "int8.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "int8.onnx"), providers=["CPUExecutionProvider"])

    (result,) = session.run(None, {"x": np.zeros((1, 3, WIDTH), dtype=np.float32)})

    np.testing.assert_array_equal(result, np.zeros((1, 3, 48), dtype=np.float32))


def test_a_graph_without_weights_is_refused(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "length"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "length"])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "a.onnx")

    with pytest.raises(ModelError, match="no matrix product"):
        quantize(tmp_path / "a.onnx", tmp_path / "b.onnx")
