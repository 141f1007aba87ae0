"""A checkpoint in the published layout, imported, ingested, searched and scored as its publication describes it."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from peft import LoraConfig, get_peft_model
from qdrant_client import QdrantClient, models
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer, GteConfig, GteModel, PreTrainedTokenizerFast

from care_qdrant.cli import model as model_cli
from care_qdrant.encoders.local.architecture import native_config
from care_qdrant.errors import InputError, ModelError, SchemaMismatch
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.model.adopt.importing import import_model, read_probe_texts
from care_qdrant.model.card import read_card
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.folder import verify_checkpoint
from care_qdrant.qdrant.checks import check_contract
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document, Vectors
from tests import tiny

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks
QUERIES = ["高血压吃什么好？", "孩子发烧三天", "EGFR 突变"]
RETRIEVAL = "<instruct>Given a Chinese medical question, retrieve medical documents that answer the question.\n<query>"
WIDTH = 768


@pytest.fixture(scope="module")
def imported(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported") / "care"
    import_model([str(published)], folder, name="care")
    return folder


def _query_vectors(published: Path, texts: list[str], prompt: str = RETRIEVAL) -> torch.Tensor:
    folder = published / "query_encoder"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    native = GteConfig(**native_config(config, folder))
    model = GteModel.from_pretrained(folder, config=native, dtype=torch.float32).eval()
    tokens = PreTrainedTokenizerFast.from_pretrained(folder)(
        [prompt + text for text in texts], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        hidden = model(tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
    return normalize(hidden[:, 0], dim=1)


def _document_vectors(published: Path, texts: list[str], dtype: torch.dtype) -> torch.Tensor:
    folder = published / "doc_encoder"
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModel.from_pretrained(folder, dtype=dtype).eval()
    marked = [text + tokenizer.eos_token for text in texts]
    tokens = tokenizer(marked, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**tokens).last_hidden_state
    return normalize(hidden[:, -1], dim=1)[:, :WIDTH].float()


def test_import_ingest_search_and_score_are_those_of_the_publication(
    published: Path, imported: Path, client: QdrantClient, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    rows = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(tiny.TEXTS)]
    corpus.write_text("\n".join(rows), encoding="utf-8")
    model = CareModel.load(imported, precision="fp32")
    ingest(corpus, model, client, "care")
    [*answers] = Retriever(client, "care", model).search(QUERIES, len(tiny.TEXTS))

    documents = _document_vectors(published, tiny.TEXTS, torch.float32)
    expected = (_query_vectors(published, QUERIES) @ documents.T).numpy()
    for hits, row in zip(answers, expected, strict=True):
        assert [int(hit.document_id) for hit in hits] == np.argsort(-row).tolist()
        np.testing.assert_allclose([hit.score for hit in hits], np.sort(row)[::-1], atol=1e-5)
    assert np.linalg.norm(documents, axis=1).max() < 0.99, "cut vectors are no unit vectors"
    found = model.encode_document(tiny.TEXTS)
    np.testing.assert_allclose(found, documents.numpy(), atol=1e-5)
    halves = _document_vectors(published, tiny.TEXTS, torch.bfloat16).numpy()
    assert _cosines(found, halves).min() >= 0.9999
    params = client.get_collection("care").config.params.vectors
    assert isinstance(params, dict) and params["care"].distance == models.Distance.DOT


def test_the_folder_says_geometry_license_tasks_and_bases(imported: Path) -> None:
    card = verify_checkpoint(imported)
    assert card.geometry == "cut" and card.license == "cc-by-nc-sa-4.0"
    assert card.query.prompt == card.query.tasks["retrieval"] == RETRIEVAL
    assert card.document.prompt == "" and card.document.tasks.keys() == {"sts"}
    assert card.onnx is not None and card.onnx.default == "fp32", "no real queries tested int8"
    output = CliRunner().invoke(model_cli.command, ["info", str(imported)]).output
    assert "non-commercial" in output and "cut after normalising" in output
    stock = SentenceTransformer(str(imported), device="cpu", model_kwargs={"dtype": torch.float32})
    ours = CareModel.load(imported).encode_document(tiny.TEXTS)
    np.testing.assert_allclose(stock.encode_document(tiny.TEXTS), ours, atol=1e-5)


def test_a_query_has_the_prompt_of_its_task(published: Path, imported: Path) -> None:
    model = CareModel.load(imported, precision="fp32")
    prompt = model.query_prompt("rerank")
    assert prompt is not None and prompt.startswith("<instruct>Based on a Chinese medical question")
    expected = _query_vectors(published, QUERIES, prompt).numpy()
    np.testing.assert_allclose(model.encode_query(QUERIES, prompt=prompt), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode_query(QUERIES), _query_vectors(published, QUERIES).numpy(), atol=1e-5)
    with pytest.raises(InputError, match="its tasks are: rerank, retrieval, sts"):
        model.query_prompt("summary")


def test_tasks_of_one_pair_search_one_collection(imported: Path, client: QdrantClient) -> None:
    from llama_index.embeddings.care import CareEmbedding

    model = CareModel.load(imported)
    ingest([Document(str(number), text) for number, text in enumerate(tiny.TEXTS)], model, client, "care")
    scores = {
        task: Retriever(client, "care", model, task=task).search(QUERIES[:1], 3)[0][0].score
        for task in (None, "retrieval", "rerank")
    }
    assert scores[None] == scores["retrieval"] != scores["rerank"]
    stored = model.contract()
    for task in ("retrieval", "rerank"):
        embedding = CareEmbedding(model=str(imported), query_task=task)
        assert embedding.contract() == stored
        expected = model.encode_query(QUERIES[:1], prompt=model.query_prompt(task))[0]
        np.testing.assert_allclose(embedding.get_query_embedding(QUERIES[0]), expected, atol=1e-6)


def test_geometry_and_tasks_are_part_of_the_fingerprint(imported: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(imported, tmp_path / "altered"))
    for change in ('"geometry": "cut"', '"sts": "<instruct>'):
        text = (imported / "care.json").read_text(encoding="utf-8")
        assert change in text
        altered = text.replace(change, change.replace("cut", "unit").replace("<instruct>", ""))
        (folder / "care.json").write_text(altered, encoding="utf-8")
        with pytest.raises(ModelError, match="is not that of its content"):
            read_card(folder)


def test_vectors_under_a_cosine_are_refused(imported: Path, client: QdrantClient) -> None:
    model = CareModel.load(imported)
    params = models.VectorParams(size=model.dim, distance=models.Distance.COSINE)
    client.create_collection("docs", vectors_config={"care": params})
    with pytest.raises(SchemaMismatch, match="needs 768 dimensions and Dot"):
        check_contract(Collection(client, "docs").schema, "care", model.contract())


def test_an_adapter_is_merged_as_peft_merges_it_from_two_repositories(published: Path, tmp_path: Path) -> None:
    adapter, merged, base = tmp_path / "adapter", tmp_path / "merged", published / "doc_encoder"
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    wrapped = get_peft_model(AutoModel.from_pretrained(base, dtype=torch.float32), config)
    wrapped.save_pretrained(adapter)
    wrapped.merge_and_unload().bfloat16().save_pretrained(merged)
    AutoTokenizer.from_pretrained(base).save_pretrained(merged)
    query = str(published / "query_encoder")
    folders = [tmp_path / "one", tmp_path / "other"]
    for source, folder in zip((adapter, merged), folders, strict=True):
        card = import_model([query, str(source)], folder, name="care")
        assert [base["side"] for base in card.bases] == ["query", "document"]
        assert card.license == "CC-BY-NC-SA-4.0"
    one, other = (CareModel.load(folder).encode_document(tiny.TEXTS) for folder in folders)
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_stock_router_model_becomes_a_pair(pair_folder: Path, tmp_path: Path) -> None:
    from sentence_transformers.base.modules import Router

    sides = [SentenceTransformer(str(pair_folder / side), device="cpu") for side in ("query", "document")]
    router = Router.for_query_document(*([*side.children()] for side in sides))
    stock = SentenceTransformer(modules=[router], prompts={"query": "问：", "document": ""}, device="cpu")
    stock.save_pretrained(str(tmp_path / "stock"), create_model_card=False)
    card = import_model([str(tmp_path / "stock")], tmp_path / "care", name="care", probe_texts=tiny.TEXTS)
    assert card.geometry == "unit" and card.query.prompt == "问："
    model = CareModel.load(tmp_path / "care", precision="fp32")
    np.testing.assert_allclose(model.encode_query(QUERIES), stock.encode_query(QUERIES), atol=1e-5)
    np.testing.assert_allclose(model.encode_document(tiny.TEXTS), stock.encode_document(tiny.TEXTS), atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("prompt", ["", "query: "])
def test_two_models_of_sentence_transformers_are_not_taken_for_the_published_ones(
    tmp_path: Path, pooling: str, prompt: str
) -> None:
    """Their own pooling and prompts would be replaced by CARE's."""
    query, document = tiny.query_tower(tmp_path / "q", pooling=pooling), tiny.document_tower(tmp_path / "d")
    model = SentenceTransformer(str(query), device="cpu", prompts={"query": prompt})
    model.save_pretrained(str(query), create_model_card=False)
    with pytest.raises(ModelError, match="care model join") if pooling == "mean" or prompt else nullcontext():
        import_model([str(query), str(document)], tmp_path / "pair", name="x")


def test_probe_queries_are_read_as_every_file_of_json_lines(tmp_path: Path) -> None:
    """Blank lines, a byte order mark and the line separators of Unicode inside a text end no line."""
    file, texts = tmp_path / "probe.jsonl", ["头痛\u2028三天", "fever"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    file.write_text("\ufeff" + "\n\n".join(lines) + "\n", encoding="utf-8")
    assert read_probe_texts(file) == texts
    for wrong in ('{"text": null}', '{"text": ["a"]}', "[]", "[" * 100_000, '{"text": "caf\xe9"}'):
        file.write_bytes(wrong.encode("latin-1"))
        with pytest.raises(InputError):
            read_probe_texts(file)


def test_what_is_no_pair_is_refused(published: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds neither query_encoder/ and doc_encoder/ nor a Router"):
        import_model([str(published / "doc_encoder")], tmp_path / "care", name="care")


def _cosines(one: Vectors, other: Vectors) -> Vectors:
    products = (one * other).sum(axis=1)
    return products / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))
