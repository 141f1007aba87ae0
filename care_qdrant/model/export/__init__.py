"""The ONNX files of a model (extra ``onnx``): exported, made int8, compared with the weights."""
