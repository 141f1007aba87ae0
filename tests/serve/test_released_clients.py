"""The clients that others released, pointed at a service: OpenAI's own, and the classes of three frameworks."""

from typing import Any

import numpy as np
import pytest
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai import OpenAIEmbedding
from openai import AuthenticationError, BadRequestError, NotFoundError, OpenAI

from care_qdrant.model.care_model import CareModel
from tests.serve.conftest import KEY, Ask, pair
from tests.tiny import TEXTS

AS_DOCUMENT = {"extra_body": {"input_type": "document"}}
"""Options that make a class of one side ask for the document side."""


@pytest.fixture
def model() -> CareModel:
    return pair()


@pytest.fixture
async def base_url(serve_with_key: Ask, model: CareModel) -> str:
    return str(await serve_with_key(model))


def same(found: Any, expected: Any) -> bool:
    return np.allclose(np.asarray(found), expected, atol=1e-7)


def test_openai(base_url: str, model: CareModel) -> None:
    with OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
        for extra, encode in (({}, model.encode_query), (AS_DOCUMENT, model.encode_document)):
            for form in ({}, {"encoding_format": "float"}):
                answer = client.embeddings.create(model="pair", input=TEXTS, **extra, **form)  # without a form: base64
                assert same([row.embedding for row in answer.data], encode(TEXTS))
        assert [entry.id.partition("@")[0] for entry in client.models.list()] == ["pair"]


@pytest.mark.parametrize(
    ("error", "asked", "code"),
    [
        (NotFoundError, {"model": "text-embedding-3-small", "input": "发烧"}, "unknown_model"),
        (BadRequestError, {"model": "pair", "input": [[1, 2, 3]]}, "tokens_refused"),
        (BadRequestError, {"model": "pair", "input": "发烧", "dimensions": 16}, "invalid_dimensions"),
    ],
)
def test_a_refusal_is_an_exception_of_openai_with_its_code(base_url: str, error, asked, code) -> None:
    with OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client, pytest.raises(error) as caught:
        client.embeddings.create(**asked)
    assert caught.value.code == code


def test_a_wrong_key_is_an_exception_of_openai(base_url: str) -> None:
    with OpenAI(base_url=base_url, api_key="wrong", max_retries=0) as client, pytest.raises(AuthenticationError):
        client.embeddings.create(model="pair", input="发烧")


def test_llama_index(base_url: str, model: CareModel) -> None:
    settings: dict[str, Any] = {"model_name": "pair", "api_base": base_url, "api_key": KEY, "max_retries": 0}
    assert same(OpenAIEmbedding(**settings).get_query_embedding(TEXTS[0]), model.encode_query(TEXTS[:1])[0])
    documents = OpenAIEmbedding(**settings, additional_kwargs=AS_DOCUMENT)
    assert same(documents.get_text_embedding_batch(TEXTS), model.encode_document(TEXTS))


def test_langchain(base_url: str, model: CareModel) -> None:
    settings: dict[str, Any] = {"model": "pair", "base_url": base_url, "api_key": KEY, "max_retries": 0}
    queries = OpenAIEmbeddings(**settings, check_embedding_ctx_length=False)
    assert same(queries.embed_query(TEXTS[0]), model.encode_query(TEXTS[:1])[0])
    documents = OpenAIEmbeddings(**settings, check_embedding_ctx_length=False, model_kwargs=AS_DOCUMENT)
    assert same(documents.embed_documents(TEXTS), model.encode_document(TEXTS))


def test_haystack(base_url: str, model: CareModel) -> None:
    settings: dict[str, Any] = {"api_base_url": base_url, "api_key": Secret.from_token(KEY), "max_retries": 0}
    query = OpenAITextEmbedder(model="pair", **settings).run(TEXTS[0])
    assert same(query["embedding"], model.encode_query(TEXTS[:1])[0])
    # Its classes pass no field on: they have the query side only.
    documents = OpenAIDocumentEmbedder(model="pair", progress_bar=False, **settings)
    embedded = documents.run([Document(content=text) for text in TEXTS])["documents"]
    assert same([document.embedding for document in embedded], model.encode_query(TEXTS))
