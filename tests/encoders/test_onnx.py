import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from care_qdrant.encoders.onnx import OnnxEncoder, int8_saturates, session_options
from care_qdrant.encoders.side import Side
from care_qdrant.errors import EncodingError, IncompleteModel, ModelError
from care_qdrant.model.export.onnx import export_query_encoder
from tests import tiny
from tests.encoders.conftest import PROMPT, Exported

FP32, INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"
POOLINGS = ("cls", "mean", "lasttoken")
QUERIES = ["痛", *tiny.medical_texts(14), "很长的问题" * 30]


def open_encoder(folder: Path, onnx_file: str = FP32, **settings: int) -> OnnxEncoder:
    return OnnxEncoder(folder, onnx_file, Side("cls", 48, PROMPT), 32, **settings)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_those_of_stock_sentence_transformers(exported: Exported, pooling: str) -> None:
    folder, _ = exported(pooling)
    stock = SentenceTransformer(str(folder), device="cpu").encode_query(QUERIES)

    found = open_encoder(folder).encode(QUERIES)

    assert found.dtype == np.float32
    np.testing.assert_allclose(found, stock, atol=1e-5, rtol=0)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("onnx_file", [FP32, INT8])
def test_a_vector_does_not_depend_on_the_texts_that_share_its_batch(
    exported: Exported, pooling: str, onnx_file: str
) -> None:
    """onnxruntime's own int8 moves a vector by its neighbours, a thousand times more than the order of float sums."""
    encoder = open_encoder(exported(pooling)[0], onnx_file)
    alone = np.concatenate([encoder.encode([text]) for text in QUERIES])

    for texts, expected in [(QUERIES, alone), (QUERIES[::-1], alone[::-1]), (QUERIES[-4:], alone[-4:])]:
        np.testing.assert_allclose(encoder.encode(texts), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_int8_vectors_are_near_the_float_ones(exported: Exported, pooling: str) -> None:
    folder, _ = exported(pooling)
    exact, rounded = open_encoder(folder).encode(QUERIES), open_encoder(folder, INT8).encode(QUERIES)

    cosines = (exact * rounded).sum(axis=1)
    assert cosines.min() > 0.995
    assert np.abs(exact - rounded).max() > 1e-5, "the int8 graph multiplies in float32"


@pytest.mark.skipif(int8_saturates(), reason="the other kernels saturate on this CPU, and are not used there")
def test_the_kernels_for_old_cpus_give_the_same_vectors(exported: Exported) -> None:
    import onnxruntime

    folder, _ = exported("cls")
    ids = np.array([[2, 5, 6, 7, 3]], dtype=np.int64)
    fast, exact = (
        onnxruntime.InferenceSession(str(folder / INT8), session_options(1, exact_kernels=exact)).run(
            None, {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        )[0]
        for exact in (False, True)
    )

    np.testing.assert_allclose(fast, exact, atol=0.02)


@pytest.mark.parametrize("exact", [True, False])
def test_the_threads_of_a_session_do_not_spin(exact: bool) -> None:
    """A spinning pool cost 34 times the time on a contended machine, which no test can count on. So the test is that
    the option arrives at ONNX Runtime."""
    options = session_options(2, exact_kernels=exact)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_a_tokenizer_that_pads_on_the_left_changes_nothing(exported: Exported, tmp_path: Path) -> None:
    folder = shutil.copytree(exported("lasttoken")[0], tmp_path / "query")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "padding_side": "left"}))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(direction="left", length=40)
    tokenizer.save(str(folder / "tokenizer.json"))
    export_query_encoder(folder, tiny.TEXTS)
    stock = SentenceTransformer(str(folder), device="cpu")
    alone = np.concatenate([stock.encode_query([text]) for text in QUERIES])

    np.testing.assert_allclose(open_encoder(folder).encode(QUERIES), alone, atol=1e-5, rtol=0)


def test_a_prompt_of_the_call_replaces_the_models_own(exported: Exported) -> None:
    encoder = open_encoder(exported("cls")[0])

    np.testing.assert_array_equal(encoder.encode(["发烧"], prompt="痛："), encoder.encode(["痛：发烧"], prompt=""))
    np.testing.assert_array_equal(encoder.encode(["发烧"]), encoder.encode([PROMPT + "发烧"], prompt=""))
    assert not np.array_equal(encoder.encode(["发烧"]), encoder.encode(["发烧"], prompt=""))


def test_counts_are_those_of_the_uncut_text(exported: Exported) -> None:
    folder, _ = exported("cls")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    counts = open_encoder(folder).count_tokens(QUERIES)

    assert counts == [len(tokenizer.encode(PROMPT + text).ids) for text in QUERIES]
    assert max(counts) > 96


def test_nothing_to_encode_gives_no_rows(exported: Exported) -> None:
    assert open_encoder(exported("cls")[0]).encode([]).shape == (0, 32)


def test_threads_get_their_own_vectors(exported: Exported) -> None:
    encoder = open_encoder(exported("cls")[0], INT8)
    texts = tiny.medical_texts(64)
    expected = encoder.encode(texts)

    with ThreadPoolExecutor(8) as pool:
        found = np.concatenate(list(pool.map(lambda text: encoder.encode([text]), texts)))

    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_encodes(exported: Exported) -> None:
    encoder = open_encoder(exported("cls")[0])
    expected = encoder.encode(["咳嗽"])
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, encoder.encode(["咳嗽"]).tobytes())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        found = np.frombuffer(stream.read(), dtype=np.float32)
    os.waitpid(child, 0)

    np.testing.assert_array_equal(found, expected[0])


def test_torch_is_not_imported(exported: Exported) -> None:
    folder, _ = exported("cls")
    program = (
        "import sys; from pathlib import Path; from care_qdrant.encoders.onnx import OnnxEncoder\n"
        "from care_qdrant.encoders.side import Side\n"
        f"OnnxEncoder(Path({str(folder)!r}), {INT8!r}, Side('cls', 48), 32).encode(['咳嗽'])\n"
        "sys.exit(bool({'torch', 'transformers', 'onnx'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_onnxruntime_keeps_and_sends_no_telemetry(exported: Exported, tmp_path: Path) -> None:
    folder, _ = exported("cls")
    program = (
        "from pathlib import Path; from care_qdrant.encoders.onnx import OnnxEncoder\n"
        "from care_qdrant.encoders.side import Side\n"
        f"OnnxEncoder(Path({str(folder)!r}), {INT8!r}, Side('cls', 48), 32).encode(['咳嗽'])"
    )
    left_out = {"ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "CI"}
    here = {name: value for name, value in os.environ.items() if name not in left_out} | {"HOME": str(tmp_path)}

    subprocess.run([sys.executable, "-c", program], check=True, env=here)

    assert not list(tmp_path.rglob("*onnxruntime*"))


@pytest.mark.parametrize("missing", ["tokenizer.json", FP32])
def test_a_missing_file_is_named(exported: Exported, tmp_path: Path, missing: str) -> None:
    folder = shutil.copytree(exported("cls")[0], tmp_path / "query")
    (folder / missing).unlink()

    with pytest.raises(IncompleteModel, match=missing):
        open_encoder(folder)


@pytest.mark.parametrize("broken", ["tokenizer.json", FP32])
def test_a_broken_file_is_named(exported: Exported, tmp_path: Path, broken: str) -> None:
    folder = shutil.copytree(exported("cls")[0], tmp_path / "query")
    (folder / broken).write_bytes(b"not a model")

    with pytest.raises(ModelError, match=broken):
        open_encoder(folder)


def test_another_dimension_is_refused(exported: Exported) -> None:
    with pytest.raises(ModelError, match=r"gives 32 dimensions.* says 64"):
        OnnxEncoder(exported("cls")[0], FP32, Side("cls", 48), 64)


def test_a_vector_that_is_not_finite_is_refused(exported: Exported, tmp_path: Path) -> None:
    folder = shutil.copytree(exported("cls")[0], tmp_path / "query")
    model = onnx.load(folder / FP32)
    table = next(tensor for tensor in model.graph.initializer if "word_embeddings" in tensor.name)
    values = numpy_helper.to_array(table).copy()
    values[:] = np.nan
    table.CopyFrom(numpy_helper.from_array(values, table.name))
    onnx.save(model, folder / FP32)

    with pytest.raises(EncodingError, match=r"text 0.*头痛"):
        open_encoder(folder).encode(["头痛"])


def test_a_text_without_any_token_is_refused(exported: Exported, tmp_path: Path) -> None:
    folder = shutil.copytree(exported("cls")[0], tmp_path / "query")
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**content, "post_processor": None}))

    with pytest.raises(EncodingError, match=r"text 1 \(.*\) has no tokens"):
        open_encoder(folder).encode(["头痛", ""], prompt="")


@pytest.mark.parametrize(
    "text", ["血糖 6.1 mmol/L 正常吗？" * 100_000, "a" * 2_000_000, " " * 2_000_000 + "痛", "痛\n" * 900_000]
)
def test_of_an_endless_text_only_what_can_count_is_tokenised(exported: Exported, text: str) -> None:
    """The tokenizer holds the interpreter's lock, and with it an event loop: 9 s for two million characters."""
    encoder = open_encoder(exported("cls")[0])
    encoder.encode(["痛"])
    start = time.process_time()
    vectors = encoder.encode([text])
    assert time.process_time() - start < 0.5
    assert vectors.shape == (1, 32)


@pytest.mark.parametrize("length", [300, 400, 2_000, 4_000])
def test_a_long_text_has_the_vector_that_the_whole_text_gives(exported: Exported, length: int) -> None:
    folder, _ = exported("mean")
    stock = SentenceTransformer(str(folder), device="cpu")
    for words in ("血糖 6.1 mmol/L 正常吗？", "pneumonoultramicroscopic HbA1c ", "痛"):
        text = (words * length)[:length]
        np.testing.assert_allclose(open_encoder(folder).encode([text]), stock.encode_query([text]), atol=1e-5, rtol=0)
