"""`CareEmbedding`: each text by its own encoder, through everything that LlamaIndex does with an embedding."""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.node_parser import SemanticSplitterNodeParser
from llama_index.core.schema import Document
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.embeddings.care import CareEmbedding, CareNodeParser
from llama_index.embeddings.care.cache import embedding_queries
from llama_index_instrumentation import get_dispatcher
from pydantic import ValidationError

from care_qdrant.errors import FingerprintMismatch, InputError, MissingExtra, UnusableText
from care_qdrant.model.care_model import CareModel
from tests.tiny import BusyEncoder, HashEncoder, HashModel, care_folder, medical_texts, static_tower

QUERY = "高血压患者饮食上要注意什么？"


def close(left: Any, right: Any) -> bool:
    return bool(np.allclose(left, right, atol=1e-6))


def test_each_role_is_embedded_by_its_own_encoder(pair_folder: Path) -> None:
    embedding, model = CareEmbedding(model=str(pair_folder)), CareModel.load(pair_folder)
    query, document = embedding.get_query_embedding(QUERY), embedding.get_text_embedding(QUERY)
    assert close(query, model.encode_query([QUERY])[0])
    assert close(document, model.encode_document([QUERY])[0])
    assert not close(query, document)
    assert np.linalg.norm(query) == pytest.approx(1)


async def test_async_gives_the_same_vectors(pair_folder: Path) -> None:
    embedding = CareEmbedding.from_dict({"model": pair_folder, "query_cache_size": 0})
    assert close(await embedding.aget_query_embedding(QUERY), embedding.get_query_embedding(QUERY))
    texts = [QUERY, "二甲双胍"]
    batch = await embedding.aget_text_embedding_batch(texts)
    assert close(batch, embedding.get_text_embedding_batch(texts))
    assert close(await embedding.aget_text_embedding(QUERY), batch[0])


async def test_documents_go_in_large_batches(hash_model: HashModel) -> None:
    """LlamaIndex's own default is ten texts a call, and its async calls all run at once."""
    encoder = BusyEncoder(lambda _: None)
    hash_model._encoder = encoder
    embedding = CareEmbedding(model="m")
    texts = medical_texts(300)
    one_by_one = HashEncoder().encode(texts)
    found = embedding.get_text_embedding_batch(texts)
    assert np.allclose(found, one_by_one) and encoder.batches <= len(texts) / 60
    encoder.batches = 0
    found = await CareEmbedding(model="m").aget_text_embedding_batch(texts)
    assert np.allclose(found, one_by_one) and encoder.batches <= len(texts) / 60
    encoder.batches = 0
    CareEmbedding(model="m", embed_batch_size=100).get_text_embedding_batch(texts)
    assert encoder.batches == 3


def test_queries_need_no_torch_and_creation_loads_nothing(pair_folder: Path) -> None:
    code = (
        "import sys\n"
        "from llama_index.embeddings.care import CareEmbedding\n"
        f"embedding = CareEmbedding(model={str(pair_folder)!r})\n"
        "assert 'onnxruntime' not in sys.modules, 'created, and already loaded'\n"
        f"assert len(embedding.get_query_embedding({QUERY!r})) == 32\n"
        "assert not {'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class TestFields:
    """Everything that changes a vector is a field, and a field cannot change under a loaded encoder."""

    def test_dict_and_pickle_and_copies_give_the_same_vectors(self, pair_folder: Path) -> None:
        embedding = CareEmbedding(model=str(pair_folder), query_prompt="问：", query_cache_size=0)
        expected = embedding.get_query_embedding(QUERY)
        for twin in (
            CareEmbedding.from_dict(json.loads(json.dumps(embedding.to_dict()))),
            pickle.loads(pickle.dumps(embedding)),
            copy.deepcopy(embedding),
            copy.copy(embedding),
            embedding.model_copy(),
        ):
            assert isinstance(twin, CareEmbedding)
            assert close(twin.get_query_embedding(QUERY), expected)

    def test_pickling_removes_nothing(self, hash_model: HashModel, caplog: pytest.LogCaptureFixture) -> None:
        embedding = CareEmbedding(model="m", embeddings_cache=SimpleKVStore())
        embedding.get_query_embedding(QUERY)
        twin = pickle.loads(pickle.dumps(embedding))
        assert not caplog.records
        hash_model.query_encoder.encoded.clear()
        assert close(twin.get_query_embedding(QUERY), embedding.get_query_embedding(QUERY))
        assert not hash_model.query_encoder.encoded, "the cache came along"

    def test_a_pickle_refuses_another_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        models = {"pickled": HashModel(salt="one")}
        monkeypatch.setattr(CareModel, "load", lambda source, **_: models[source])
        pickled = pickle.dumps(CareEmbedding(model="pickled"))
        assert close(pickle.loads(pickled).get_query_embedding(QUERY), models["pickled"].encode_query([QUERY])[0])
        models["pickled"] = HashModel(salt="another")
        with pytest.raises(FingerprintMismatch):
            pickle.loads(pickled).get_query_embedding(QUERY)

    def test_weights_are_shared(self, pair_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loads: list[str] = []
        load = CareModel.load

        def counted(source: str, **settings: Any) -> CareModel:
            loads.append(source)
            return load(source, **settings)

        monkeypatch.setattr(CareModel, "load", counted)
        first = CareEmbedding(model=str(pair_folder))
        second = CareEmbedding(model=str(pair_folder), query_prompt="另一个")
        for embedding in (first, second, copy.deepcopy(first)):
            embedding.get_query_embedding(QUERY)
        assert len(loads) == 1

    def test_a_vector_changing_field_cannot_be_assigned(self, hash_model: HashModel) -> None:
        embedding = CareEmbedding(model="m")
        for field, value in (("model", "other"), ("query_prompt", "x"), ("embeddings_cache", SimpleKVStore())):
            with pytest.raises(ValidationError, match="frozen"):
                setattr(embedding, field, value)

    def test_a_copy_with_another_prompt_has_other_vectors(self, hash_model: HashModel) -> None:
        embedding = CareEmbedding(model="m", embeddings_cache=SimpleKVStore())
        plain = embedding.get_query_embedding(QUERY)
        prompted = embedding.model_copy(update={"query_prompt": "问："})
        assert prompted.get_query_embedding(QUERY) == HashEncoder().encode(["问：" + QUERY])[0].tolist()
        assert embedding.get_query_embedding(QUERY) == plain

    def test_a_model_trained_again_in_place_is_another_model(self, tmp_path: Path) -> None:
        folder = care_folder(tmp_path / "pair")
        embedding = CareEmbedding(model=str(folder))
        saved = embedding.to_dict()
        care_folder(folder, seed=7)
        assert CareEmbedding(model=str(folder)).to_dict() != saved
        with pytest.raises(FingerprintMismatch, match="the model has changed"):
            CareEmbedding.from_dict(saved).get_query_embedding(QUERY)

    def test_an_unknown_field_value_is_refused(self) -> None:
        with pytest.raises(ValidationError):
            CareEmbedding.from_dict({"on_truncation": "sometimes"})


class TestCache:
    """One text, two roles, two vectors."""

    def test_a_cached_query_is_not_given_to_another_precision(self, pair_folder: Path) -> None:
        store = SimpleKVStore()
        vectors = [
            CareEmbedding(model=str(pair_folder), precision=precision, embeddings_cache=store).get_query_embedding(
                QUERY
            )
            for precision in ("int8", "fp32")
        ]
        assert vectors[0] != vectors[1]

    def test_a_text_that_is_too_long_is_refused_also_when_another_embedding_cached_it(self, pair_folder: Path) -> None:
        store, long = SimpleKVStore(), QUERY * 100
        CareEmbedding(model=str(pair_folder), on_truncation="ignore", embeddings_cache=store).get_query_embedding(long)
        strict = CareEmbedding(model=str(pair_folder), on_truncation="error", embeddings_cache=store)
        with pytest.raises(InputError):
            strict.get_query_embedding(long)

    def test_no_two_settings_share_a_cached_query(self, pair_folder: Path) -> None:
        words = (None, "whole", "prompt", "task", "int8", "query", "/", "")
        settings = [
            CareEmbedding(
                model=str(pair_folder),
                query_prompt=prompt,
                on_truncation=kept,
                precision=precision,
                embeddings_cache=SimpleKVStore(),
            )
            for prompt in words
            for kept in ("warn", "error")
            for precision in ("int8", "fp32")
        ]
        with embedding_queries():
            names = [each.embeddings_cache._scoped("embeddings") for each in settings]
        assert len(set(names)) == len(names)

    async def test_a_cached_document_is_not_given_to_a_query(self, pair_folder: Path) -> None:
        embedding = CareEmbedding(model=str(pair_folder), embeddings_cache=SimpleKVStore())
        model = CareModel.load(pair_folder)
        document = embedding.get_text_embedding(QUERY)
        for _ in range(2):
            assert close(embedding.get_query_embedding(QUERY), model.encode_query([QUERY])[0])
            assert close(embedding.get_text_embedding(QUERY), document)
            assert close(embedding.get_text_embedding_batch([QUERY]), [document])
            assert await embedding.aget_query_embedding(QUERY) == embedding.get_query_embedding(QUERY)
            assert close(await embedding.aget_text_embedding_batch([QUERY]), [document])

    def test_two_pairs_may_share_a_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        models = {name: HashModel(name=name, salt=name) for name in ("a", "b")}
        monkeypatch.setattr(CareModel, "load", lambda source, **kwargs: models[source])
        store = SimpleKVStore()
        first = CareEmbedding(model="a", embeddings_cache=store).get_text_embedding(QUERY)
        second = CareEmbedding(model="b", embeddings_cache=store).get_text_embedding(QUERY)
        assert not close(first, second)

    def test_other_collections_pass_through(self, hash_model: HashModel) -> None:
        store = SimpleKVStore()
        cache = CareEmbedding(model="m", embeddings_cache=store).embeddings_cache
        assert cache is not None
        cache.put("key", {"value": 1}, collection="mine")
        assert store.get("key", collection="mine") == {"value": 1}

    def test_recent_queries_are_kept_and_bounded(self, hash_model: HashModel) -> None:
        embedding = CareEmbedding(model="m", query_cache_size=2)
        for text in ("a", "b", "a", "c", "a", "b"):
            assert embedding.get_query_embedding(text) == HashEncoder().encode([text])[0].tolist()
        assert hash_model.query_encoder.encoded == ["a", "b", "c", "b"]


class TestTruncation:
    """Measured in tokens, at the encoder's own limit."""

    LONG = "长" * 100

    def test_error_names_the_limit(self, hash_model: HashModel) -> None:
        embedding = CareEmbedding(model="m", on_truncation="error")
        with pytest.raises(InputError, match="query of 102 tokens is cut at 64"):
            embedding.get_query_embedding(self.LONG)
        with pytest.raises(InputError, match="document of 102 tokens"):
            embedding.get_text_embedding(self.LONG)
        embedding.get_query_embedding("长" * 62)

    def test_many_are_one_warning_with_their_number(
        self, hash_model: HashModel, caplog: pytest.LogCaptureFixture
    ) -> None:
        embedding = CareEmbedding(model="m")
        embedding.get_text_embedding_batch([self.LONG, "短", *(self.LONG + str(number) for number in range(20))])
        [record] = caplog.records
        assert "document of 102 tokens and 20 more of 22 texts are cut at 64 tokens" in record.getMessage()
        CareEmbedding(model="m", on_truncation="ignore").get_query_embedding(self.LONG)
        assert len(caplog.records) == 1

    def test_the_prompt_counts(self, hash_model: HashModel) -> None:
        embedding = CareEmbedding(model="m", on_truncation="error", query_prompt="问：")
        embedding.get_query_embedding("长" * 60)
        with pytest.raises(InputError, match="65 tokens"):
            embedding.get_query_embedding("长" * 61)


class TestQueryOnly:
    """Installations and servers that must not load the large encoder."""

    def test_documents_can_be_refused(self, hash_model: HashModel) -> None:
        with pytest.raises(InputError, match=r"care-ingest corpus\.jsonl"):
            CareEmbedding(model="m", documents=False).get_text_embedding("x")
        assert hash_model.document_encoder_reads == 0

    def test_without_torch_the_error_names_the_way_out(
        self, pair_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "sentence_transformers", None)
        embedding = CareEmbedding(model=str(pair_folder))
        with pytest.raises(MissingExtra, match=r"'\.\[ingest\].*care-ingest corpus\.jsonl"):
            embedding.get_text_embedding("x")


class TestInstrumentation:
    """Each call is one pair of events and one span, whoever listens."""

    async def test_events_come_exactly_once(self, hash_model: HashModel) -> None:
        seen: list[str] = []

        class Listener(BaseEventHandler):
            def handle(self, event: Any, **kwargs: Any) -> None:
                seen.append(type(event).__name__)

        spans = SimpleSpanHandler()
        debug = LlamaDebugHandler(print_trace_on_end=False)
        dispatcher = get_dispatcher()
        listener = Listener()
        dispatcher.add_event_handler(listener)
        dispatcher.add_span_handler(spans)
        try:
            embedding = CareEmbedding(model="m", callback_manager=CallbackManager([debug]))
            embedding.get_query_embedding("a")
            await embedding.aget_query_embedding("b")
            embedding.get_text_embedding("c")
            embedding.get_text_embedding_batch(["d", "e"])
            await embedding.aget_text_embedding_batch(["f", "g"])
        finally:
            dispatcher.event_handlers.remove(listener)
            dispatcher.span_handlers.remove(spans)
        assert seen == ["EmbeddingStartEvent", "EmbeddingEndEvent"] * 5
        assert len(debug.get_event_pairs(CBEventType.EMBEDDING)) == 5
        names = [span.id_.partition("-")[0] for span in spans.completed_spans]
        for name in ("get_query_embedding", "aget_query_embedding", "get_text_embedding"):
            assert names.count(f"CareEmbedding.{name}") == 1, names


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modle": "my-pair"}, "modle"),
        ({"truncation": "error"}, "truncation"),
        ({"model_name": "my-pair"}, "here it is model= that names the model, and that is 'built-in'"),
    ],
)
def test_a_setting_that_is_not_one_is_refused_and_not_left_at_its_default(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        CareEmbedding(**settings)


@pytest.mark.parametrize("is_included", [True, False])
def test_a_blank_text_among_others_gets_a_vector_that_can_be_compared(tmp_path: Path, is_included: bool) -> None:
    """LlamaIndex's splitters embed blank lines and take cosines, so its stock classes give them vectors as well."""
    folder = "built-in" if is_included else static_tower(tmp_path / "table")
    embedding, texts = CareEmbedding(model=str(folder)), [QUERY, "\f", "少吃盐。", ""]
    vectors = np.array(embedding.get_text_embedding_batch(texts))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert close(vectors[[0, 2]], CareModel.load(folder).encode_document([QUERY, "少吃盐。"]))
    assert np.abs(vectors[[0, 2]] @ vectors[1]).max() < 0.5, "a blank text is near none"
    assert close(vectors[1], vectors[3])


@pytest.mark.parametrize("blank", ["", "  \n ", "　", "\f", "\ufeff"])
def test_a_semantic_splitter_goes_through_blank_pages(blank: str) -> None:
    pages = ["孩子发烧可以吃退烧药。\n\n\n\n多喝水。", blank, "糖尿病人少吃西瓜。"]
    documents = [Document(text=text, id_=f"p{number}") for number, text in enumerate(pages)]
    lines = SemanticSplitterNodeParser(embed_model=CareEmbedding(), sentence_splitter=lambda text: text.split("\n"))
    found = {node.ref_doc_id for node in lines.get_nodes_from_documents(documents)}
    assert {"p0", "p2"} <= found


def test_half_a_character_is_named() -> None:
    embedding, broken = CareEmbedding(), "公式：\ud835 = 体重"
    with pytest.raises(UnusableText, match=r"text 1 .*an unpaired surrogate"):
        embedding.get_text_embedding_batch([QUERY, broken])
    with pytest.raises(UnusableText, match=r"an unpaired surrogate"):
        embedding.get_query_embedding(broken)
    with pytest.raises(InputError, match=r"document 'page-3': .*an unpaired surrogate"):
        CareNodeParser(embedding=embedding).get_nodes_from_documents([Document(text=broken, id_="page-3")])
