"""Tables of token vectors side by side: their pieces, their training, and the pair that is made of them."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from benchmarks.experiments import token_tables, token_tables_pair
from benchmarks.experiments.token_tables import SPLITS, VARIANTS, read_task
from benchmarks.experiments.token_tables_training import _gradient, counts_of, pieces_of
from care_qdrant.model.pair import CareModel

SAMPLE = Path(__file__).parents[2] / "examples" / "sample"
TEXTS = [json.loads(line)["text"] for line in (SAMPLE / "corpus.jsonl").read_text("utf-8").splitlines()]


def _tokenizer(merges: int | None = None) -> Tokenizer:
    """Train a tokenizer; with a number, return it with its first merges alone."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Punctuation()
    trainer = trainers.BpeTrainer(vocab_size=2500, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    if merges is None:
        return tokenizer
    content = json.loads(tokenizer.to_str())
    content["model"]["merges"] = content["model"]["merges"][:merges]
    return Tokenizer.from_str(json.dumps(content))


@pytest.mark.parametrize("merges", [0, 40, 300])
def test_pieces_are_what_fewer_merges_give(merges: int) -> None:
    whole, fewer = _tokenizer(), _tokenizer(merges)
    found = counts_of(whole, TEXTS) @ pieces_of(whole, merges)
    # A text that is cut at a number of tokens ends elsewhere where the tokens are shorter.
    short = [row for row, text in enumerate(TEXTS) if len(text) < 150]
    assert len(short) > 20 and (abs(found[short] - counts_of(fewer, TEXTS)[short]).sum() == 0)


def test_the_gradient_is_that_of_the_loss() -> None:
    sums = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    same = np.zeros((4, 4), dtype=bool)
    same[0, 2] = same[2, 0] = True
    leaf = torch.from_numpy(sums).requires_grad_()
    queries, documents = torch.nn.functional.normalize(leaf).chunk(2)
    logits = (queries @ documents.T / 0.1).masked_fill(torch.from_numpy(same), -1e4)
    own = torch.arange(4)
    loss = (torch.nn.functional.cross_entropy(logits, own) + torch.nn.functional.cross_entropy(logits.T, own)) / 2
    loss.backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    np.testing.assert_allclose(_gradient(sums, same, 0.1), leaf.grad.numpy(), atol=1e-4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pairs and of a development set, made of the sample: the title of each article asks for its text."""
    root = tmp_path_factory.mktemp("data")
    rows = [json.loads(line) for line in (SAMPLE / "corpus.jsonl").read_text("utf-8").splitlines()]
    pairs = [
        {"query": row["title"], "positive": row["text"], "source": "toyhom_im", "licence": "MIT"} for row in rows
    ] + [{"query": "x", "positive": "y", "source": "other", "licence": "research-only"}]
    questions = rows[::5]
    files = {
        "train/pairs_open": pairs * 2,
        "dev/retrieval/corpus": [{"id": str(number), "text": row["text"]} for number, row in enumerate(rows)],
        "dev/retrieval/queries": [{"id": f"q{number}", "text": row["title"]} for number, row in enumerate(questions)],
        "dev/retrieval/qrels": [
            {"query_id": f"q{number}", "document_id": str(5 * number), "score": 1} for number in range(len(questions))
        ],
    }
    for name, content in files.items():
        path = root / f"{name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
    return root


@pytest.mark.parametrize("split", SPLITS)
def test_no_held_out_text_and_no_unpublishable_row_is_trained_on(data: Path, split: str) -> None:
    task = read_task(data, split)
    trained = {text for row in task.pairs for text in (row["query"], row["positive"])}
    assert trained and "x" not in trained
    if split != "dev":
        assert not trained & (set(task.documents) | {query for _, query, _ in task.queries})


@pytest.mark.timeout(300)
def test_a_pair_of_trained_tables_loads_everywhere_alike(data: Path, tmp_path: Path) -> None:
    variant, folder = "three cuts", tmp_path / "pair"
    arguments = [str(data), "--work", str(tmp_path / "work"), "--seeds", "0", "--split", "dev", "--variant", variant]
    result = CliRunner().invoke(token_tables.main, [*arguments, "--output", str(tmp_path / "found.json")])
    assert result.exit_code == 0, result.output
    [base, measured] = json.loads((tmp_path / "found.json").read_text("utf-8"))["rows"]
    assert measured["against_base"]["base"] == base["variant"] and 0.3 < measured["ndcg_at_10"] <= 1
    arguments = [str(data), str(folder), "--work", str(tmp_path / "work"), "--variant", variant]
    result = CliRunner().invoke(token_tables_pair.main, arguments)
    assert result.exit_code == 0, result.output
    model = CareModel.load(folder)
    assert model.dim == sum(table.width for table in VARIANTS[variant])
    documents = model.encode_document(TEXTS[:20])
    stock = SentenceTransformer(str(folder / "document"), device="cpu").encode_document(TEXTS[:20])
    np.testing.assert_allclose(documents, stock, atol=1e-5)
    queries = SentenceTransformer(str(folder / "query"), device="cpu").encode_query(["高血压吃什么药"])
    assert (model.encode_query(["高血压吃什么药"]) @ queries.T).item() > 0.9999
    table = load_file(folder / "document" / "model.safetensors")["embeddings"]
    assert table.dtype == np.int8 and (folder / "document" / "model.onnx").stat().st_size < table.nbytes / 20
