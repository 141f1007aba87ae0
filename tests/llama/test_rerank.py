"""`CareRerank`: nodes of any retriever, in the order of the stored vectors."""

import copy
import pickle

import pytest
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.care import CareEmbedding
from llama_index.postprocessor.care import CareRerank
from llama_index.vector_stores.care import CareVectorStore
from pydantic import ValidationError
from qdrant_client import QdrantClient

from care_qdrant.errors import FingerprintMismatch, InputError
from tests.llama.collections import DOCUMENTS, NAME, fill, node_id, vector
from tests.tiny import HashModel

FOUND = [NodeWithScore(node=TextNode(id_=node_id(one), text=one.text), score=9.0) for one in DOCUMENTS]
STRANGERS = [
    NodeWithScore(node=TextNode(id_="not-a-point", text="x"), score=8.0),
    NodeWithScore(node=TextNode(id_="00000000-0000-0000-0000-000000000000", text="y"), score=7.0),
]


@pytest.fixture
def rerank(client: QdrantClient, hash_model: HashModel) -> CareRerank:
    fill(client)
    embedding = CareEmbedding(model="m", documents=False)
    return CareRerank(embedding=embedding, vector_store=CareVectorStore(NAME, client, embedding=embedding))


async def test_the_stored_vectors_decide_sync_and_async(rerank: CareRerank, hash_model: HashModel) -> None:
    for document in DOCUMENTS:
        nodes = rerank.postprocess_nodes(FOUND, query_str=document.text)
        assert nodes[0].node_id == node_id(document)
        assert nodes[0].score == pytest.approx(1)
        assert [one.score for one in nodes] == sorted((one.score or 0 for one in nodes), reverse=True)
        other_way = await rerank.apostprocess_nodes(FOUND, query_str=document.text)
        assert [one.node_id for one in other_way] == [one.node_id for one in nodes]
    assert hash_model.document_encoder_reads == 0


def test_nodes_that_are_not_in_the_collection_come_last(rerank: CareRerank) -> None:
    nodes = rerank.postprocess_nodes([*STRANGERS, *FOUND], query_str="x")
    assert [one.node_id for one in nodes[-2:]] == [one.node_id for one in STRANGERS]
    assert [one.score for one in nodes[-2:]] == [None, None]
    assert rerank.postprocess_nodes(STRANGERS[:1], query_str="x")[0].score is None


def test_top_n_and_the_given_nodes_stay_as_they_were(rerank: CareRerank) -> None:
    best = rerank.model_copy(update={"top_n": 2}).postprocess_nodes(FOUND, query_str=DOCUMENTS[3].text)
    assert len(best) == 2
    assert [one.score for one in FOUND] == [9.0] * 4


def test_the_vector_of_another_models_retriever_is_not_used(rerank: CareRerank) -> None:
    query = QueryBundle(DOCUMENTS[0].text, embedding=vector(DOCUMENTS[1].text))
    assert rerank.postprocess_nodes(FOUND, query)[0].node_id == node_id(DOCUMENTS[0])


def test_store_and_embedding_must_belong_together(client: QdrantClient, hash_model: HashModel) -> None:
    fill(client)
    with pytest.raises((ValidationError, FingerprintMismatch), match="not opened for this embedding"):
        CareRerank(embedding=CareEmbedding(model="m"), vector_store=CareVectorStore(NAME, client))


def test_it_needs_the_query(rerank: CareRerank) -> None:
    with pytest.raises(InputError, match="needs the query"):
        rerank.postprocess_nodes(FOUND)


def test_a_setting_that_is_not_one_is_refused(rerank: CareRerank) -> None:
    with pytest.raises(ValidationError, match="top_k"):
        CareRerank(embedding=rerank.embedding, vector_store=rerank.vector_store, top_k=2)


def test_it_is_copied_and_not_pickled(rerank: CareRerank) -> None:
    [best, *_] = copy.deepcopy(rerank).postprocess_nodes(FOUND, query_str=DOCUMENTS[0].text)
    assert best.node_id == node_id(DOCUMENTS[0])
    with pytest.raises(TypeError, match="holds an open client, which cannot be pickled"):
        pickle.dumps(rerank)
