"""Agreement of two vectors of one text: the cosine, and the least one that is accepted, by what made the two.

Another model's vectors of the same texts have cosines near 0, so each bound stands between what rounding does and that.
"""

import numpy as np
import numpy.typing as npt

from care_qdrant.types import Vectors

LEAST_FLOAT32 = 0.9999
"""Float32 vectors of the weights, and of the ONNX file that was exported from them."""
LEAST_HALF_PRECISION = 0.999
"""Float32 vectors, and vectors of the same weights in half precision, by a server's kernels, or on another device."""
LEAST_INT8 = 0.995
"""Float32 vectors, and vectors of an int8 graph: the lowest over the probe queries."""
LEAST_MEAN_INT8 = 0.999
"""Float32 vectors, and vectors of an int8 graph: the mean over the probe queries."""
LEAST_INT8_WEIGHTS = 0.99
"""Vectors of weights that are stored in 8 bits, and vectors of their graph, which also rounds activations."""
INT8_MARGIN = 0.005
"""Distance below the worst cosine of an int8 graph at its export that is accepted later: other texts, another CPU."""
LEAST_ADAPTER = 0.98
"""Vectors of an adapter when it was trained, and over its base again: rounded when it was merged, on another device."""
LEAST_BATCHED = 0.99
"""Vectors of a text by a service, alone and in a batch."""
LEAST_STORED = 0.99
"""Vector in a part of a bulk job, and as Qdrant stores it, possibly in half precision."""
LEAST_MADE_AGAIN = 0.98
"""Vector that a caller passes, and its re-encoding for a check, possibly by int8 on another processor."""
LEAST_OLD_MODEL = 0.5
"""Stored vectors, and vectors of their texts by an old model, in the median: titles and chunks may differ."""


def cosines(vectors: Vectors, expected: Vectors) -> npt.NDArray[np.floating]:
    """Return the cosine of each row with the other's, (rows,); 0 for a row of length 0, NaN for one with a NaN."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    return np.asarray(np.einsum("td,td->t", vectors, expected) / np.maximum(lengths, 1e-12))


def projections(vectors: Vectors, expected: Vectors) -> npt.NDArray[np.floating]:
    """Return each row's projection on the expected one, as a share of its length, (rows,); for unit vectors the cosine.

    The length of vectors that were cut to fewer dimensions is part of the score, so it counts here.
    """
    return np.asarray(np.einsum("td,td->t", vectors, expected) / np.square(expected).sum(axis=1))
