import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from care_qdrant.encoders import onnx as engine


def test_the_probe_is_the_product_that_it_says() -> None:
    graph = onnx.load_model_from_string(engine._PROBE).graph
    values = {node.output[0]: numpy_helper.to_array(node.attribute[0].t).tolist() for node in graph.node[:2]}
    shapes = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer}

    assert graph.node[2].op_type == "MatMulInteger"
    assert [values[name] for name in graph.node[2].input] == [[255], [127]]
    assert [shapes[node.input[0]] for node in graph.node[:2]] == [[1, 8], [8, 16]]


def test_what_it_says_of_this_cpu_is_what_this_cpu_does() -> None:
    left, right = np.full((4, 64), 255, np.uint8), np.full((64, 32), 127, np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["y"])],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.UINT8, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [4, 32])],
        [numpy_helper.from_array(right, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    (found,) = session.run(None, {"a": left})
    exact = np.array_equal(found, left.astype(np.int32) @ right.astype(np.int32))

    assert engine.int8_saturates() is not exact
