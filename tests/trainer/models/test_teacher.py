import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from care_trainer.data.collators import TeacherCollator
from care_trainer.losses.embedding import EmbeddingLoss
from care_trainer.losses.objectives import AlignObjective, Batch, InfoNce
from care_trainer.models import teacher, towers
from care_trainer.models.teacher import teacher_vectors
from click.testing import CliRunner
from sentence_transformers import SentenceTransformer

from care_qdrant.cli import care
from care_qdrant.errors import EncodingError, InputError
from tests.encoders.remote.test_server import EmbeddingServer
from tests.trainer.tiny_run import pairs

TEXTS = [row["query"] for row in pairs()[:20]]


def _size(features: dict[str, torch.Tensor]) -> tuple[int, int]:
    """Return the texts and tokens of a batch, padding included; none for the comparison on loading, of other tokens."""
    ids = features["input_ids"]
    texts = len(features["cu_seq_lens_q"]) - 1 if "cu_seq_lens_q" in features else len(ids)
    return (texts, ids.numel()) if ids.max() > 9 else (0, 0)


class _Counting:
    """Loads the teacher, and counts the texts that it encodes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.encoded = folder, 0

    def __call__(self) -> SentenceTransformer:
        model = towers.load(self.folder)

        def count(_: object, features: tuple[dict[str, torch.Tensor]]) -> None:
            self.encoded += _size(features[0])[0]

        model.register_forward_pre_hook(count)
        return model


def test_vectors_are_the_teachers_own_and_computed_once(document_folder: Path, tmp_path: Path) -> None:
    load = _Counting(document_folder)
    found = teacher_vectors(load, document_folder, TEXTS, tmp_path, dim=32)
    expected = towers.load(document_folder).encode_document(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    again = teacher_vectors(load, document_folder, TEXTS, tmp_path, dim=32)
    np.testing.assert_array_equal(found, again)
    assert load.encoded == len(TEXTS)


@pytest.mark.parametrize(("right", "served"), [(True, False), (True, True), (False, False)])
def test_vectors_of_a_bulk_job_are_taken_where_they_are_the_encoders(
    document_folder: Path, tmp_path: Path, right: bool, served: bool, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    rows = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(TEXTS[:15])]
    corpus.write_text("\n".join(rows), encoding="utf-8")
    model = document_folder
    if not right:
        model = tmp_path / "other"
        other = towers.load(document_folder)
        with torch.no_grad():
            other[0].model.embed_tokens.weight.copy_(torch.randn_like(other[0].model.embed_tokens.weight))
        other.save(str(model))
    job = f"{tmp_path}/job"
    with EmbeddingServer.serving(model) if served else nullcontext() as server:
        engine = ["--endpoint", server.url] if server is not None else []
        plan = ["plan", str(corpus), job, "--model", str(model), "--overflow", "truncate"]
        for command in (plan, ["encode", job, *engine]):
            assert CliRunner().invoke(care, ["bulk", *command], catch_exceptions=False).exit_code == 0
        assert server is None or sum(len(request["input"]) for request in server.requests) > len(TEXTS[:15])
    load = _Counting(document_folder)
    found = teacher_vectors(load, document_folder, TEXTS, tmp_path / "run", dim=32, cache=tmp_path / "c", jobs=[job])
    expected = towers.load(document_folder).encode_document(TEXTS)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert load.encoded == (teacher.SAMPLED_TEXTS + 5 if right else teacher.SAMPLED_TEXTS + len(TEXTS))
    assert ("another model" in caplog.text) is not right
    with pytest.raises(InputError, match="teacher_cache"):
        teacher_vectors(load, document_folder, TEXTS, tmp_path / "run", dim=32, jobs=[job])


def test_a_teacher_reads_as_many_tokens_at_once_whatever_the_lengths(
    document_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("care_qdrant.encoders.local.torch.CPU_BATCH_TOKENS", 120)
    sizes: list[tuple[int, int]] = []

    def load() -> SentenceTransformer:
        model = towers.load(document_folder)
        model.register_forward_pre_hook(lambda _, features: sizes.append(_size(features[0])))
        return model

    teacher_vectors(load, document_folder, [*TEXTS, *(text * 6 for text in TEXTS[:5])], tmp_path, dim=32)
    assert sum(texts for texts, _ in sizes) == 25 and max(tokens for _, tokens in sizes) <= 120
    assert len({texts for texts, _ in sizes if texts}) > 1, "short texts in batches of more"


def test_another_teacher_computes_anew_and_other_texts_of_the_same_do_not(
    document_folder: Path, query_folder: Path, tmp_path: Path
) -> None:
    teacher_vectors(_Counting(document_folder), document_folder, TEXTS, tmp_path, dim=32)
    other = _Counting(query_folder)
    found = teacher_vectors(other, query_folder, TEXTS, tmp_path, dim=32)
    assert other.encoded == len(TEXTS)
    np.testing.assert_allclose(found, towers.load(query_folder).encode_document(TEXTS), atol=1e-3)
    fewer = _Counting(query_folder)
    assert teacher_vectors(fewer, query_folder, TEXTS[:5], tmp_path, dim=32).shape == (5, 32)
    assert fewer.encoded == 0


def test_a_teacher_that_gives_no_number_is_refused(document_folder: Path, tmp_path: Path) -> None:
    def broken() -> SentenceTransformer:
        model = towers.load(document_folder)
        with torch.no_grad():
            model[0].model.get_input_embeddings().weight.fill_(float("nan"))
        return model

    with pytest.raises(EncodingError, match="not finite"):
        teacher_vectors(broken, document_folder, TEXTS, tmp_path, dim=32)


def test_stage_one_with_stored_vectors_is_stage_one_with_the_teacher_in_memory(
    document_folder: Path, query_folder: Path, tmp_path: Path
) -> None:
    vectors = teacher_vectors(_Counting(document_folder), document_folder, TEXTS, tmp_path, dim=32)
    student = towers.load(query_folder).eval()
    collate = TeacherCollator(vectors, preprocess_fn=student.preprocess)
    batch = collate([{"text": TEXTS[row], "label": row} for row in (3, 17, 5)])
    features = {key.removeprefix("text_"): value for key, value in batch.items() if key.startswith("text_")}
    objective = AlignObjective(InfoNce(0.05))
    stored = EmbeddingLoss(student, objective)([dict(features)], batch["label"])

    online = towers.load(document_folder).eval()
    texts = [TEXTS[row] for row in (3, 17, 5)]
    with torch.no_grad():
        document = online(online.preprocess(texts))["sentence_embedding"]
    query = student(student.preprocess(texts))["sentence_embedding"]
    expected = objective(Batch([query], [torch.arange(3)], document))
    assert stored.item() == pytest.approx(expected.item(), rel=2e-3)
