import numpy as np
import pytest
import torch
from care_trainer.losses.objectives import (
    MAX_SCALE,
    AlignObjective,
    Batch,
    InfoNce,
    Matryoshka,
    Others,
    PairObjective,
    false_negatives,
)
from sentence_transformers.sentence_transformer.losses import CoSENTLoss, MultipleNegativesRankingLoss

ROWS, DIM = 6, 8


def _columns(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, DIM, generator=generator) for _ in range(count)]


def _distinct_keys(count: int) -> list[torch.Tensor]:
    return [torch.arange(ROWS) + 100 * column for column in range(count)]


def _unit(rows: np.ndarray | torch.Tensor) -> np.ndarray:
    values = np.asarray(rows)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def _numpy_info_nce(
    columns: list[torch.Tensor], temperature: float, masked: set[tuple[int, int]] = frozenset()
) -> float:
    unit = list(map(_unit, columns))
    scores = unit[0] @ np.concatenate(unit[1:]).T / temperature
    for row, candidate in masked:
        scores[row, candidate] = -np.inf
    return float(np.mean([np.log(np.exp(scores[row]).sum()) - scores[row, row] for row in range(ROWS)]))


def test_info_nce_is_equation_1_with_hard_negatives() -> None:
    columns = _columns(4)
    found = InfoNce(0.05)(Batch(columns, _distinct_keys(4)))
    assert found.item() == pytest.approx(_numpy_info_nce(columns, 0.05), rel=1e-5)


def test_info_nce_without_false_negatives_is_sentence_transformers_own() -> None:
    columns = _columns(3)
    theirs = MultipleNegativesRankingLoss(torch.nn.Identity(), scale=20.0).compute_loss_from_embeddings(columns, None)
    assert InfoNce(0.05)(Batch(columns, _distinct_keys(3))).item() == pytest.approx(theirs.item(), rel=1e-5)


def test_symmetric_averages_both_directions() -> None:
    columns = _columns(2)
    found = InfoNce(0.05, symmetric=True)(Batch(columns, _distinct_keys(2)))
    both = (_numpy_info_nce(columns, 0.05) + _numpy_info_nce(columns[::-1], 0.05)) / 2
    assert found.item() == pytest.approx(both, rel=1e-5)


def test_the_same_document_the_same_question_and_the_question_itself_are_no_negatives() -> None:
    query, positive, negative = _distinct_keys(3)
    positive[3] = positive[1]  # two rows share a document
    query[4] = query[2]  # two rows ask the same
    negative[0] = positive[0]  # a row without a negative repeats its positive
    mask = false_negatives([query, positive], [query, positive, negative], 2)
    found = {(int(row), int(candidate)) for row, candidate in mask.nonzero()} - {(row, row) for row in range(ROWS)}
    assert found == {(1, 3), (3, 1), (2, 4), (4, 2), (0, ROWS)}
    columns = _columns(3)
    loss = InfoNce(0.05)(Batch(columns, [query, positive, negative]))
    assert loss.item() == pytest.approx(_numpy_info_nce(columns, 0.05, found), rel=1e-5)


def test_the_margin_removes_candidates_that_score_above_the_positive() -> None:
    columns = _columns(2)
    columns[1][3] = columns[0][1] * 2.0  # row 1's query is exactly row 3's document
    unit = [torch.nn.functional.normalize(column, dim=1) for column in columns]
    cosine = (unit[0] @ unit[1].T).numpy()
    masked = {
        (row, other) for row in range(ROWS) for other in range(ROWS) if cosine[row, other] > cosine[row, row] + 0.1
    } - {(row, row) for row in range(ROWS)}
    assert (1, 3) in masked
    found = InfoNce(0.05, margin=0.1)(Batch(columns, _distinct_keys(2)))
    assert found.item() == pytest.approx(_numpy_info_nce(columns, 0.05, masked), rel=1e-5)


def test_a_learned_temperature_has_a_gradient_and_a_fixed_one_none() -> None:
    learned, fixed = InfoNce(0.05, learn=True), InfoNce(0.05)
    learned(Batch(_columns(2), _distinct_keys(2))).backward()
    assert learned.log_scale.grad is not None and learned.log_scale.grad.item() != 0
    assert [parameter for parameter in fixed.parameters() if parameter.requires_grad] == []
    assert learned.temperature == pytest.approx(0.05, rel=1e-5)


def test_matryoshka_is_the_mean_of_equation_4() -> None:
    columns = _columns(3)
    found = Matryoshka(InfoNce(0.05), [8, 4, 2])(Batch(columns, _distinct_keys(3)))
    expected = np.mean([_numpy_info_nce([column[:, :dim] for column in columns], 0.05) for dim in (8, 4, 2)])
    assert found.item() == pytest.approx(float(expected), rel=1e-5)


def test_align_is_equation_3_with_the_squared_norm_of_equation_2() -> None:
    student, teacher = _columns(2)
    found = AlignObjective(InfoNce(0.05), contrastive_weight=0.5, mse_weight=2.0)(
        Batch([student], [torch.arange(ROWS)], teacher.half())
    )
    unit = _unit(student), _unit(teacher.half().float())
    squared = ((unit[0] - unit[1]) ** 2).sum(axis=1).mean()
    expected = 0.5 * _numpy_info_nce([student, teacher.half().float()], 0.05) + 2.0 * squared
    assert found.item() == pytest.approx(float(expected), rel=1e-4)


def test_align_tells_a_text_apart_from_stored_vectors_of_others_too() -> None:
    student, teacher = _columns(2)
    stored = np.random.default_rng(0).normal(size=(20, DIM)).astype(np.float32)
    keys = np.arange(100, 120)
    keys[:10] = 0  # the text of the first row: no negatives of it
    others = Others(stored, keys, 12)
    objective = AlignObjective(InfoNce(0.05), mse_weight=0.0, others=others)
    torch.manual_seed(7)
    rows = torch.randint(20, (12,)).numpy()
    torch.manual_seed(7)
    found = objective(Batch([student], [torch.arange(ROWS)], teacher))
    unit = list(map(_unit, (student, teacher, stored)))
    scores = unit[0] @ np.concatenate([unit[1], unit[2][rows]]).T / 0.05
    scores[0, ROWS:][keys[rows] == 0] = -np.inf
    expected = np.mean(np.log(np.exp(scores).sum(axis=1)) - np.diag(scores))
    assert found.item() == pytest.approx(float(expected), rel=1e-4)


def test_a_loss_in_half_precision_is_computed_in_float32() -> None:
    columns = [column.bfloat16() for column in _columns(2)]
    assert InfoNce(0.01)(Batch(columns, _distinct_keys(2))).dtype == torch.float32


def test_pairs_with_a_score_have_sentence_transformers_cosent() -> None:
    columns = _columns(2)
    scores = torch.tensor([0.0, 1.0, 0.5, 0.5, 0.2, 1.0])
    objective = PairObjective(InfoNce(0.02), score_temperature=0.05)
    expected = CoSENTLoss(torch.nn.Identity(), scale=20.0).compute_loss_from_embeddings(columns, scores)
    assert objective(Batch(columns, _distinct_keys(2), scores)).item() == pytest.approx(expected.item(), rel=1e-5)
    without = objective(Batch(columns, _distinct_keys(2)))
    assert without.item() == pytest.approx(InfoNce(0.02)(Batch(columns, _distinct_keys(2))).item())


def test_cut_documents_are_scored_as_they_are() -> None:
    query, *documents = _columns(3)
    documents = [0.1 * column for column in documents]
    unit = torch.nn.functional.normalize(query, dim=1).numpy()
    scores = unit @ np.concatenate(documents).T / 0.05
    expected = np.mean([np.log(np.exp(scores[row]).sum()) - scores[row, row] for row in range(ROWS)])
    found = InfoNce(0.05, geometry="cut")(Batch([query, *documents], _distinct_keys(3)))
    assert found.item() == pytest.approx(float(expected), rel=1e-5)
    aligned = AlignObjective(InfoNce(0.05, geometry="cut"), contrastive_weight=0.0)
    distance = ((unit - documents[0].half().float().numpy()) ** 2).sum(axis=1).mean()
    batch = Batch([query], [torch.arange(ROWS)], documents[0].half())
    assert aligned(batch).item() == pytest.approx(float(distance), rel=1e-5)


def test_a_learned_temperature_keeps_its_gradient_at_the_clamp() -> None:
    loss = InfoNce(0.005, learn=True)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.05)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss(Batch(_columns(2), _distinct_keys(2))).backward()
        assert loss.log_scale.grad is not None and loss.log_scale.grad.item() > 0, "this batch wants a higher τ"
        found.append(loss.temperature)
        optimizer.step()
    assert found[0] == pytest.approx(1 / MAX_SCALE) and found[0] < found[1] < found[2]
