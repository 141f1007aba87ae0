"""Whether this CPU multiplies int8 exactly.

On x86 without VNNI (AVX2, early AVX-512) onnxruntime's fast int8 kernels add pairs of products in 16 bits and clamp the
sum: vectors come out wrong, without an error. There the session must be told to take the slower, exact kernels.
"""

import base64
from functools import cache

import onnxruntime  # type: ignore[import-untyped]

# One MatMulInteger of eight times 255 with eight times 127, as an ONNX model; a test rebuilds it.
_PROBE = base64.b64decode(
    "CAg6xAEKLAoBchIBYSIPQ29uc3RhbnRPZlNoYXBlKhMKBXZhbHVlKgcIARACSgH/oAEECiwKAWMSAWIiD0NvbnN0YW50T2ZT"
    "aGFwZSoTCgV2YWx1ZSoHCAEQA0oBf6ABBAoYCgFhCgFiEgF5Ig1NYXRNdWxJbnRlZ2VyEgFwKhkIAhAHQgFyShABAAAAAAAA"
    "AAgAAAAAAAAAKhkIAhAHQgFjShAIAAAAAAAAABAAAAAAAAAAYhMKAXkSDgoMCAYSCAoCCAEKAggQQgQKABAN"
)
_EXACT = 255 * 127 * 8


@cache
def int8_saturates() -> bool:
    """Return whether the fast int8 kernels of this CPU clamp, by multiplying the largest values once."""
    session = onnxruntime.InferenceSession(_PROBE, providers=["CPUExecutionProvider"])
    (product,) = session.run(None, {})
    return bool((product != _EXACT).any())
