"""The torch engine: sentence-transformers' vectors, in fewer padded tokens, and on through memory that runs out."""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoConfig, AutoModel

from care_qdrant.encoders.batching import Budget
from care_qdrant.encoders.engine import Engine
from care_qdrant.encoders.local import torch as torch_engine
from care_qdrant.encoders.local.torch import TorchEncoder, load_sentence_transformer
from care_qdrant.encoders.references import Reference, make_references, save_references
from care_qdrant.errors import ModelError
from care_qdrant.model.care_model import CareModel
from tests import tiny

TEXTS = [*tiny.medical_texts(60), "".join(tiny.TEXTS) * 3, "短", "a"]
"""Some are longer than the encoders read: the end marker of a cut text must stay."""
KINDS = ("bert", "qwen3", "qwen3-right", "static", "weighted")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("towers")
    folders = {
        "bert": tiny.query_tower(root / "bert", pooling="mean"),
        "qwen3": tiny.document_tower(root / "qwen3"),
        "static": tiny.static_tower(root / "static"),
        "weighted": tiny.weighted_tower(root / "weighted"),
    }
    right = SentenceTransformer(str(folders["qwen3"]), device="cpu")
    right.tokenizer.padding_side = "right"
    right.save_pretrained(str(root / "right"), create_model_card=False)
    return {**folders, "qwen3-right": root / "right"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_tokens", [40, 100_000])
def test_vectors_are_those_of_sentence_transformers(folders: dict[str, Path], kind: str, batch_tokens: int) -> None:
    stock = SentenceTransformer(str(folders[kind]), device="cpu")
    encoder = TorchEncoder(load_sentence_transformer(folders[kind], "cpu"), "document", batch_tokens=batch_tokens)
    for prompt in ("", "咳嗽："):
        expected = stock.encode([prompt + text for text in TEXTS], batch_size=3, normalize_embeddings=True)
        np.testing.assert_allclose(encoder.encode(TEXTS, prompt=prompt), expected, atol=1e-5, rtol=0)
    assert encoder.encode([]).shape == (0, encoder.dim)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_keeps_the_direction(folders: dict[str, Path], kind: str) -> None:
    whole = TorchEncoder(load_sentence_transformer(folders[kind], "cpu"), "document").encode(TEXTS)
    encoder = TorchEncoder(load_sentence_transformer(folders[kind], "cpu", "bfloat16"), "document")
    half = encoder.encode(TEXTS)
    cosine = (whole * half).sum(axis=1) / np.linalg.norm(half, axis=1)
    assert encoder.report()["dtype"] == ("float32" if kind == "static" else "bfloat16"), "a table stays as it is"
    assert cosine.min() >= 0.9999


def test_bfloat16_that_changes_the_vectors_is_refused_where_those_of_float32_are_known(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    whole = CareModel.load(folders["qwen3"])
    known = make_references(whole.encode_document, TEXTS[:4])
    save_references(tmp_path / "right.json", whole.fingerprint, known)
    turned = [Reference.of(each.text, np.roll(each.numbers, 1)) for each in known]
    save_references(tmp_path / "wrong.json", whole.fingerprint, turned)

    def encode(reference: str) -> None:
        engine = Engine(dtype="bfloat16", reference=tmp_path / reference)
        assert CareModel.load(folders["qwen3"], engine=engine).encode_document(TEXTS).shape == (len(TEXTS), whole.dim)

    encode("right.json")
    with pytest.raises(ModelError, match=r"in bfloat16 are not those in float32 \(cosine"):
        encode("wrong.json")


def test_the_report_names_device_kernels_and_padding(folders: dict[str, Path]) -> None:
    encoder = TorchEncoder(load_sentence_transformer(folders["qwen3"], "cpu"), "document", batch_tokens=400)
    encoder.encode(tiny.medical_texts(400))
    report = encoder.report()
    assert (report["device"], report["dtype"], report["attention"]) == ("cpu", "float32", "sdpa")
    assert report["padding"] == 1, "texts side by side need none"


@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_encoders_that_share_a_model_do_not_disturb_each_other(folders: dict[str, Path], kind: str) -> None:
    """Both sides of a plain model share it, a service asks both at a time, and an ingestion reads ahead."""
    model = load_sentence_transformer(folders[kind], "cpu")
    sides = {prompt: TorchEncoder(model, "document", prompt=prompt, batch_tokens=60) for prompt in ("", "咳嗽：")}
    alone = {prompt: (encoder.encode(TEXTS), encoder.count_tokens(TEXTS)) for prompt, encoder in sides.items()}
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # another thread comes in between any two steps, as it does in a run of minutes
    try:
        with ThreadPoolExecutor(4) as pool:
            jobs = [
                (prompt, pool.submit(sides[prompt].encode, TEXTS), pool.submit(sides[prompt].count_tokens, TEXTS))
                for prompt in [*sides] * 10
            ]
    finally:
        sys.setswitchinterval(before)
    for prompt, vectors, counts in jobs:
        np.testing.assert_allclose(vectors.result(), alone[prompt][0], atol=1e-6, rtol=0)
        assert counts.result() == alone[prompt][1]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _encode_in_child(encoder: TorchEncoder, pipe: Connection) -> None:
    pipe.send(encoder.encode(TEXTS))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_worker_encodes_with_the_loaded_model(folders: dict[str, Path], two_threads: None) -> None:
    """The threads in which torch computed stay behind, and a child that uses two would wait for them."""
    encoder = TorchEncoder(load_sentence_transformer(folders["bert"], "cpu"), "document", batch_tokens=100_000)
    here = encoder.encode(TEXTS)
    forking = multiprocessing.get_context("fork")
    ours, theirs = forking.Pipe()
    child = forking.Process(target=_encode_in_child, args=(encoder, theirs))
    child.start()
    try:
        assert ours.poll(30), "the child hangs"
        np.testing.assert_allclose(ours.recv(), here, atol=1e-5)
    finally:
        child.kill()
        child.join()


def test_a_model_that_runs_no_short_text_is_loaded_for_longer_ones(tmp_path: Path) -> None:
    """CANINE has a vector for every fourth character."""
    folder = tmp_path / "canine"
    base = folder.with_name("base")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    AutoModel.from_config(AutoConfig.for_model("canine", **sizes)).save_pretrained(base)
    tiny.bert_tokenizer().save_pretrained(base)
    modules = [Transformer(str(base), max_seq_length=48), Pooling(32), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    texts = [text for text in TEXTS if len(text) > 8]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts, batch_size=1)
    np.testing.assert_allclose(CareModel.load(folder, device="cpu").encode_query(texts), expected, atol=1e-5)


def test_a_model_that_reads_its_mask_is_encoded_with_padding(folders: dict[str, Path]) -> None:
    """The code of some hub models reads the mask, and fails in its own way where there is none."""
    model = load_sentence_transformer(folders["qwen3"], "cpu")
    expected = model.encode(TEXTS, normalize_embeddings=True)
    transformer: Any = model[0].model
    whole = transformer.forward

    def forward(*, attention_mask: torch.Tensor, **others: Any) -> Any:
        return whole(attention_mask=attention_mask.bool(), **others)

    transformer.forward = lambda **features: forward(**{"attention_mask": None, **features})
    encoder = TorchEncoder(model, "document", batch_tokens=300)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-5, rtol=0)
    assert encoder.report()["padding"] > 1


SIZE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
FAMILIES: dict[str, tuple[dict[str, Any], bool]] = {
    "bert": (SIZE, True),
    "xlm-roberta": ({**SIZE, "pad_token_id": 0, "max_position_embeddings": 64}, True),  # counts positions from 1 here
    "qwen3": ({**SIZE, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}, True),
    "llama": ({**SIZE, "num_key_value_heads": 2, "pad_token_id": 0}, True),
    "mistral": ({**SIZE, "num_key_value_heads": 2, "sliding_window": 4, "pad_token_id": 0}, False),
    "modernbert": ({**SIZE, "local_attention": 8, "global_attn_every_n_layers": 3, "pad_token_id": 0}, False),
    "distilbert": ({"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "pad_token_id": 0}, True),
}
"""Architectures, and whether their texts are encoded without padding."""


@pytest.mark.parametrize(
    ("family", "pooling"),
    [*product(FAMILIES, ("cls", "mean", "lasttoken")), ("bert", "max"), ("qwen3", "weightedmean")],
)
def test_a_batch_without_padding_has_the_vectors_of_a_padded_one(family: str, pooling: str, tmp_path: Path) -> None:
    stock = _random_model(family, pooling, tmp_path)
    encoder = TorchEncoder(stock, "document", batch_tokens=300)
    texts = [*TEXTS, "头痛 [PAD] 三天 [PAD]"]  # a text may hold the padding token, which some families do not count
    expected = stock.encode(texts, batch_size=3, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=1e-5, rtol=0)
    assert (encoder.report()["padding"] == 1) == FAMILIES[family][1]
    np.testing.assert_array_equal(stock.encode(texts, batch_size=3, normalize_embeddings=True), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("family", "pooling"), [("bert", "cls"), ("qwen3", "lasttoken"), ("llama", "mean")])
def test_a_gpu_encodes_without_padding(
    family: str, pooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = _random_model(family, pooling, tmp_path)
    expected = stock.encode(TEXTS, batch_size=3, normalize_embeddings=True)
    encoder = TorchEncoder(stock.to("cuda", torch.bfloat16), "document", batch_tokens=300)
    assert (encoder.encode(TEXTS) * expected).sum(axis=1).min() > 0.95
    assert encoder.report()["padding"] == 1
    monkeypatch.setattr(torch_engine, "COMPILE_AFTER", 0.0)
    assert (encoder.encode(TEXTS) * expected).sum(axis=1).min() > 0.95
    assert encoder._packed is not None and encoder._packed.is_compiled


def test_without_a_compiler_the_layers_work_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = TorchEncoder(_random_model("qwen3", "lasttoken", tmp_path), "document")
    before = encoder.encode(TEXTS)
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, str(tmp_path / "no-compiler")))
    assert encoder._packed is not None
    encoder._packed.compile(encoder._sent)
    assert not encoder._packed.is_compiled
    assert np.array_equal(encoder.encode(TEXTS), before)
    # What was compiled may meet a shape later for which it fails.
    encoder._packed._compiled = {encoder._packed._transformer.layers[0]: lambda *_, **__: 1 / 0}
    assert np.array_equal(encoder.encode(TEXTS), before) and not encoder._packed.is_compiled


def _random_model(family: str, pooling: str, folder: Path) -> SentenceTransformer:
    tokenizer = SentenceTransformer(str(tiny.query_tower(folder / "tokenizer")), device="cpu").tokenizer
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **FAMILIES[family][0])
    model = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    for parameter in model.parameters():  # the usual small start would hide what a layer does
        parameter.data.normal_(std=0.3)
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    transformer = Transformer(str(folder / "base"), max_seq_length=48)
    return SentenceTransformer(modules=[transformer, Pooling(32, pooling), Normalize()], device="cpu").eval()


def test_a_budget_is_halved_and_then_raised_to_the_largest_that_fits() -> None:
    budget, room = Budget(16_000), 5_000
    for _ in range(20):
        if budget.tokens > room:
            budget.halve(budget.tokens)
        else:
            budget.fits(budget.tokens)
    assert 0.85 * room <= budget.tokens <= room
    assert budget.exceeded <= 5


_STARVED = """
import json, resource, sys
from pathlib import Path
import numpy as np, torch
torch.set_num_threads(1)
from care_qdrant.encoders.local import torch as torch_engine
from care_qdrant.encoders.local.torch import TorchEncoder, load_sentence_transformer
from tests import tiny
encoder = TorchEncoder(load_sentence_transformer(Path(sys.argv[1]), "cpu"), "document", batch_tokens=400_000)
texts = tiny.medical_texts(4_000)
expected = encoder.encode(texts[:40])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 96 * 2**20,) * 2)
found = encoder.encode(texts)
print(json.dumps([float(np.abs(found[:40] - expected).max()), encoder.report()]))
"""


def test_memory_that_runs_out_makes_batches_smaller_and_no_vector_wrong(folders: dict[str, Path]) -> None:
    """A real refusal of the allocator, in a process whose address space is limited."""
    done = subprocess.run(
        [sys.executable, "-c", _STARVED, str(folders["qwen3"])], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    difference, report = json.loads(done.stdout)
    assert difference < 1e-5
    assert report["out_of_memory"] >= 1
    assert report["batch_tokens"] < 400_000
