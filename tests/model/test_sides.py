"""A side of a model is opened once, whoever asks, and one that takes long holds up no other."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest

from care_qdrant.encoders import Encoder, TokenCounter
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.sides import ModelSide
from tests.tiny import GivenEncoder, HashEncoder

SECONDS = 60.0


class Slow:
    """A side that waits before it opens, and counts how often it does."""

    def __init__(self) -> None:
        self.may_open, self.opened = Event(), 0

    def open(self) -> Encoder:
        assert self.may_open.wait(SECONDS)
        self.opened += 1
        return HashEncoder(salt="slow")

    def tokenizer(self) -> TokenCounter:
        return HashEncoder()

    def require(self) -> None:
        pass


def model(query: ModelSide, document: ModelSide) -> CareModel:
    return CareModel(name="pair", dim=32, fingerprint="a" * 64, temperature=0.05, query=query, document=document)


def test_queries_are_encoded_while_the_document_encoder_is_loaded() -> None:
    slow, query = Slow(), HashEncoder(salt="query")
    pair = model(GivenEncoder(query), slow)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(lambda: pair.document_encoder)
        try:
            assert pair.encode_query(["咳嗽"]).tolist() == query.encode(["咳嗽"]).tolist()
            assert pair.document_tokenizer.count_tokens(["咳嗽"]) == HashEncoder().count_tokens(["咳嗽"])
            assert not loading.done()
        finally:
            slow.may_open.set()
        loading.result(SECONDS)


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_and_models_that_share_a_side_open_it_once(threads: int) -> None:
    slow, start = Slow(), Barrier(threads)
    pair = model(GivenEncoder(HashEncoder()), slow)
    control = model(pair.document, pair.document)

    askers = (lambda: pair.document_encoder, lambda: control.query_encoder, lambda: control.document_encoder)

    def ask(number: int) -> Encoder:
        start.wait(SECONDS)
        return askers[number % 3]()

    slow.may_open.set()
    with ThreadPoolExecutor(threads) as pool:
        found = set(map(id, pool.map(ask, range(threads))))
    assert (slow.opened, len(found)) == (1, 1)
