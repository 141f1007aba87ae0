"""Each way in which vectors can be wrong, made wrong and found."""

import json
import math
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models

from care_qdrant.cli import care
from care_qdrant.console.reports import show_report
from care_qdrant.errors import FingerprintMismatch, InputError, NotVerified, UnusableText
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search.good_match import fixed_questions, measure_good_match
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document, point_id
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.status import inspect_collection
from care_qdrant.vectors.verify import verify_collection
from care_qdrant.vectors.verify_report import VerifyReport, VerifySettings
from tests.tiny import HashEncoder, HashModel
from tests.vectors.collections import NAME, contents, fill, point


def _verify(client: QdrantClient, **settings: float) -> VerifyReport:
    return verify_collection(client, NAME, HashModel(name="care"), settings=VerifySettings(**settings))  # type: ignore[arg-type]


def test_all_right(attached: QdrantClient) -> None:
    before = contents(attached, without="care")
    report = _verify(attached, sample=10, least_known=0.2)
    assert report.problems == []
    assert (report.points, report.with_text, report.covered, report.sampled) == (40, 40, 40, 10)
    assert (report.without_vector, report.outdated) == (0, 0)
    assert report.lowest_cosine == pytest.approx(1.0, abs=1e-5)
    assert report.recall_at_10 == (None if Collection(attached, NAME).is_embedded else 1.0)
    assert contents(attached, without="care") == before


def test_new_and_edited_texts(attached: QdrantClient) -> None:
    attached.set_payload(NAME, {"text": "改过的"}, points=[1, 3], wait=True)
    attached.upsert(NAME, [point("named", "plain", 41, "新的")], wait=True)
    report = _verify(attached)
    assert (report.without_vector, report.outdated, report.covered, report.with_text) == (1, 2, 40, 41)
    (problem,) = report.problems
    assert problem.startswith(
        "1 point has no vector, 2 one of an earlier text and 0 one of a text that is gone; finish"
    )
    assert problem.endswith(f"with the same --model and --path/--url: care attach {NAME} --vector-name care")


def test_texts_that_are_gone(attached: QdrantClient, model: HashModel) -> None:
    attached.set_payload(NAME, {"text": ""}, points=[1, 3], wait=True)
    report = _verify(attached)
    assert (report.text_gone, report.with_text, report.covered) == (2, 38, 40)
    assert "and 2 one of a text that is gone" in report.problems[0]
    again = attach_vector(attached, NAME, model)
    assert (again.removed, again.without_text, again.covered, again.encoded) == (2, 2, 38, 0)
    assert attach_vector(attached, NAME, model).removed == 0
    assert _verify(attached).problems == []
    attached.set_payload(NAME, {"text": "又有了"}, points=[1], wait=True)
    assert attach_vector(attached, NAME, model).encoded == 1


def test_a_text_that_went_with_its_vector_leaves_nothing_to_remove(attached: QdrantClient) -> None:
    text = (attached.retrieve(NAME, [1])[0].payload or {})["text"]
    attached.set_payload(NAME, {"text": ""}, points=[1, 3], wait=True)
    attached.delete_vectors(NAME, ["care"], points=[1, 3], wait=True)
    report = _verify(attached)
    assert (report.text_gone, report.with_text, report.covered, report.problems) == (0, 38, 38, [])
    attached.set_payload(NAME, {"text": text}, points=[1], wait=True)
    assert _verify(attached).problems != []
    attach_vector(attached, NAME, HashModel(name="care"))
    assert _verify(attached).problems == []


def test_each_point_is_counted_by_what_its_payload_records(client: QdrantClient, model: HashModel) -> None:
    fill(client, "named", "plain")
    attach_vector(client, NAME, model)
    client.set_payload(NAME, {"text": "改过的"}, points=[1, 3], wait=True)
    client.set_payload(NAME, {"text": ""}, points=[5, 7], wait=True)
    client.delete_vectors(NAME, ["care"], [7, 9], wait=True)
    client.upsert(NAME, [point("named", "plain", 41, "新的")], wait=True)
    report = verify_collection(client, NAME, model, settings=VerifySettings(sample=9))
    assert (report.points, report.with_text, report.outdated, report.text_gone) == (41, 39, 2, 1)
    assert (report.without_vector, report.covered) == (2, 38)


def test_altered_vectors(attached: QdrantClient) -> None:
    wrong = HashModel(name="care").encode_document(["别的"])[0].tolist()
    attached.update_vectors(NAME, [models.PointVectors(id=7, vector={"care": wrong})], wait=True)
    report = _verify(attached, sample=40)
    assert report.lowest_cosine is not None
    assert report.lowest_cosine < 0.9
    assert any("was altered" in problem for problem in report.problems)


@given(wrong=st.lists(st.sampled_from(["zero", "swapped", "tiny"]), min_size=1, max_size=3), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_no_vector_is_wrong_in_silence(wrong: list[str], seed: int) -> None:
    """Whatever became of some of a small collection's vectors, the report names a problem."""
    draw, model = random.Random(seed), HashModel(name="care")
    with closing(QdrantClient(":memory:")) as client:
        fill(client, "named", "plain")
        attach_vector(client, NAME, model)
        assert verify_collection(client, NAME, model).problems == []
        points, _ = client.scroll(NAME, limit=100, with_vectors=["care"])
        for kind, point in zip(wrong, draw.sample(points, len(wrong)), strict=True):
            assert isinstance(point.vector, dict)
            vector = np.asarray(point.vector["care"])
            changed = {"zero": 0 * vector, "tiny": 1e-30 * vector, "swapped": np.roll(vector, 7)}[kind]
            # The embedded database normalises what it is sent, so what a server would keep is put where it is kept.
            collection = client._client.collections[NAME]  # type: ignore[attr-defined]
            collection.vectors["care"][collection.ids[point.id]] = changed
        report = verify_collection(client, NAME, model)
    assert report.problems
    assert report.lowest_cosine is not None and report.lowest_cosine < 0.9


@pytest.mark.parametrize("limits", [{"sample": -1}, {"least_cosine": math.nan}, {"least_known": math.nan}])
def test_limits_that_say_nothing_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected"):
        VerifySettings(**limits)


def test_vectors_that_are_gone(attached: QdrantClient) -> None:
    attached.delete_vectors(NAME, ["care"], [1, 3], wait=True)
    (problem,) = _verify(attached, sample=0).problems
    assert problem.startswith("2 points have no vector, 0 one of an earlier text")


def test_a_vector_that_is_gone_is_not_made_up_for_by_another_one(attached: QdrantClient) -> None:
    """As many points have the vector as say so, and they are not the same ones."""
    attached.delete_vectors(NAME, ["care"], [1, 3], wait=True)
    attached.delete_payload(NAME, ["_care"], [5, 7], wait=True)
    report = _verify(attached, sample=0)
    assert (report.without_vector, report.without_hash, report.outdated, report.covered) == (4, 2, 0, 38)
    assert report.problems[0].startswith("2 points have no vector, 2 one that does not say of which text it was made")
    attach_vector(attached, NAME, HashModel(name="care"))
    assert _verify(attached).problems == []


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("value", [0.0, math.nan])
def test_a_vector_without_a_cosine_is_never_right(count: int, value: float) -> None:
    """Nor by the widest limits, nor where its model is another one than that of the verification."""
    with closing(QdrantClient(":memory:")) as client:
        fill(client, "named", "plain")
        attach_vector(client, NAME, HashModel(name="care"))
        attach_vector(client, NAME, HashModel(name="other", salt="other"))
        widest = {"least_cosine": -1.0, "least_known": 0.0}
        assert _verify(client, **widest).problems == []
        collection = client._client.collections[NAME]  # type: ignore[attr-defined]
        for name in ("care", "other"):
            collection.vectors[name][:count] = value
        first, second = _verify(client, **widest).problems
    assert "zero or holds NaN" in first
    assert second == f"vector 'other': {first}"


class TestEveryVector:
    """Without a name, each vector that this package made is looked at."""

    @pytest.fixture
    def client(self, attached: QdrantClient) -> QdrantClient:
        """A collection with our vector, one of another model and BM25."""
        attach_vector(attached, NAME, HashModel(name="other", salt="other"))
        attach_vector(attached, NAME, None)
        return attached

    def test_all_right(self, client: QdrantClient) -> None:
        report = _verify(client, sample=10, least_known=0.2)
        assert report.problems == []
        assert {each.vector_name: each.sampled for each in report.others} == {"other": 0, "bm25": 10}
        assert {each.covered for each in report.others} == {40}
        one = verify_collection(client, NAME, HashModel(name="care"), vector_name="care")
        assert one.others == []

    @pytest.mark.parametrize("name", ["other", "bm25"])
    def test_what_is_wrong_with_another_one_is_wrong(self, client: QdrantClient, name: str) -> None:
        client.delete_vectors(NAME, [name], points=[1, 3], wait=True)
        [problem, *_] = _verify(client).problems
        assert problem.startswith(f"vector '{name}': ")

    def test_another_field_of_the_same_model(self, attached: QdrantClient, model: HashModel) -> None:
        attach_vector(attached, NAME, model, vector_name="dept", settings=AttachSettings(text_field="dept"))
        wrong = model.encode_document(["别的"])[0].tolist()
        assert _verify(attached).problems == []
        attached.update_vectors(NAME, [models.PointVectors(id=7, vector={"dept": wrong})], wait=True)
        report = _verify(attached, sample=40)
        assert report.vector_name == "care" and report.lowest_cosine == pytest.approx(1, abs=1e-5)
        assert any(problem.startswith("vector 'dept': a stored vector has cosine") for problem in report.problems)

    def test_one_that_this_version_cannot_read(self, attached: QdrantClient) -> None:
        attached.update_collection(NAME, metadata={"care:old": {"kind": "of the future"}})
        [problem] = _verify(attached).problems
        assert problem.startswith("vector 'old': ")


def test_a_share_is_shown_as_one(attached: QdrantClient, capsys: pytest.CaptureFixture[str]) -> None:
    report = _verify(attached, sample=10, least_known=0.2)
    show_report(report)
    [line] = [line for line in capsys.readouterr().out.split("\n") if line.startswith("known items")]
    assert line.split() == ["known", "items", f"{report.known_items:.1%}"]


def test_a_query_encoder_that_does_not_fit(attached: QdrantClient) -> None:
    model = HashModel(name="care")
    other = HashModel(name="care", salt="another space")
    model.__class__ = type("Mixed", (HashModel,), {"query_encoder": property(lambda _: other.query_encoder)})
    report = verify_collection(attached, NAME, model)
    assert any("the query encoder does not fit" in problem for problem in report.problems)


def test_another_model_is_refused(attached: QdrantClient) -> None:
    with pytest.raises(FingerprintMismatch):
        verify_collection(attached, NAME, HashModel(name="care", salt="other"))
    with pytest.raises(InputError, match="no vector 'else'"):
        verify_collection(attached, NAME, HashModel(name="care"), vector_name="else")


def test_a_collection_without_points(attached: QdrantClient) -> None:
    attached.delete(NAME, models.Filter(must=[]), wait=True)
    report = _verify(attached)
    assert report.problems == ["the collection has no points, so nothing was checked"]
    assert (report.points, report.covered, report.sampled) == (0, 0, 0)
    with pytest.raises(FingerprintMismatch):
        verify_collection(attached, NAME, HashModel(name="care", salt="other"))


def test_an_attach_that_has_not_begun_its_points(attached: QdrantClient) -> None:
    attached.delete_payload(NAME, ["_care"], models.Filter(must=[]), wait=True)
    report = _verify(attached)
    assert (report.sampled, report.without_vector, report.lowest_cosine) == (0, 40, None)
    assert report.problems


class Picky(HashEncoder):
    """Its tokenizer fails on some texts, and makes no token of others."""

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        failed = {place: "the tokenizer fails" for place, text in enumerate(texts) if "✗" in text}
        if failed:
            raise UnusableText(failed)
        return [0 if "∅" in text else count for text, count in zip(texts, super().count_tokens(texts), strict=True)]


@pytest.mark.parametrize("mark", ["✗", "∅"])
def test_a_text_on_which_the_tokenizer_fails_does_not_lack_a_vector(client: QdrantClient, mark: str) -> None:
    """Attach leaves it out, so that running it again would change nothing."""
    fill(client, "named", "plain")
    client.set_payload(NAME, {"text": mark}, points=[1, 3], wait=True)
    model = HashModel(name="care")
    model._encoder = Picky(model.dim, 64)
    report = attach_vector(client, NAME, model, vector_name="care")
    found = verify_collection(client, NAME, model, settings=VerifySettings(least_known=0.0))
    assert report.unreadable == found.unreadable == [1, 3]
    assert (found.with_text, found.without_vector) == (report.covered, 0) == (38, 0)
    (problem,) = found.problems
    assert problem.startswith("the encoder cannot read the text of 2 points (the first is 1)")


@pytest.mark.parametrize("unread", ["第17条：少吃盐。\ud835", "\u200b\u2060", "\ue000\ue001", "\x07\x1b"])
def test_a_text_that_no_encoder_reads_is_named_and_stops_no_other_point(unread: str) -> None:
    """Half a character, which only the embedded database can hold, and characters that show nothing."""
    client, model = QdrantClient(":memory:"), CareModel.load()
    client.create_collection("c", {"old": models.VectorParams(size=4, distance=models.Distance.COSINE)})
    rows = [unread if n == 17 else f"第{n}条：少吃盐。" for n in range(40)]
    points = [
        models.PointStruct(id=n, vector={"old": [1, 0, 0, n]}, payload={"text": row}) for n, row in enumerate(rows)
    ]
    client.upsert("c", points)
    report = attach_vector(client, "c", model)
    assert (report.encoded, report.without_text, report.unreadable, report.covered) == (39, 1, [17], 39)
    found = verify_collection(client, "c", model)
    assert (found.with_text, found.covered, found.unreadable) == (39, 39, [17])
    (problem,) = found.problems
    assert problem.startswith("the encoder cannot read the text of point 17, for example since it holds an unpaired")
    assert inspect_collection(Collection(client, "c")).unread_by_included is not None
    retriever = Retriever(client, "c", model)
    measured = measure_good_match(retriever, fixed_questions(retriever))
    assert measured is not None and measured.score is not None
    client.set_payload("c", {"text": "第17条：少吃盐。"}, points=[17])
    assert attach_vector(client, "c", model).encoded == 1
    assert verify_collection(client, "c", model).problems == []
    client.close()


ODD = "\u200b\ue000\ud800\x07—✗ 糖"
odd_texts = st.builds(lambda character, number: character * number, st.sampled_from(ODD), st.integers(0, 60))


def _payload(text: str, name: str) -> dict[str, Any]:
    """Return the payload of a node that LlamaIndex wrote; its JSON holds half characters as escapes."""
    node = {"text": text, "metadata": {"file_name": f"{name}.pdf"}, "id_": "n"}
    return {"_node_content": json.dumps(node), "_node_type": "TextNode", "doc_id": "d"}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(odd_texts, odd_texts, st.sampled_from(ODD)), min_size=1, max_size=5), st.booleans())
def test_no_odd_text_ends_an_attach_or_a_verification(odd: list[tuple[str, str, str]], is_node: bool) -> None:
    """Not by its first characters alone, by the metadata around it, or by an edit in place."""
    client, model = QdrantClient(":memory:"), CareModel.load()
    client.create_collection(NAME, {"old": models.VectorParams(size=2, distance=models.Distance.DOT)})
    rows = [(f"{before}少吃盐。", name) for before, _, name in odd] + [(f"第{n}条：少吃盐。", "") for n in range(9)]
    payloads = [_payload(text, name) if is_node else {"text": text} for text, name in rows]
    client.upsert(NAME, [models.PointStruct(id=n, vector={"old": [1, n]}, payload=p) for n, p in enumerate(payloads)])
    attach_vector(client, NAME, model)
    for number, (_, after, name) in enumerate(odd):
        text = f"{after}多喝水。" if number % 2 else after
        client.set_payload(NAME, _payload(text, name) if is_node else {"text": text}, points=[number])
    report = attach_vector(client, NAME, model, settings=AttachSettings(max_delete_fraction=1.0))
    assert attach_vector(client, NAME, model).encoded == 0
    attach_vector(client, NAME, None)
    for found in (verify_collection(client, NAME, model), verify_collection(client, NAME, None)):
        assert found.lowest_cosine == pytest.approx(1.0, abs=1e-3)
        assert all("the encoder cannot read the text" in problem for problem in found.problems)
    assert report.covered == report.points - report.without_text
    client.close()


def test_a_vector_is_one_line_with_those_counts_that_are_not_zero(tmp_path: Path) -> None:
    with open_client(path=tmp_path) as client:
        ingest([Document(f"d{n}", f"第{n}段，少吃盐") for n in range(4)], CareModel.load(), client, "c")
    whole = CliRunner().invoke(care, ["verify", "c", "--path", str(tmp_path)])
    assert whole.exit_code == 0
    assert whole.stdout.splitlines() == [
        "care-small: 4 points have it, 4 re-encoded: lowest cosine 1.0000, searching by their opening words found 100%",
        "OK: 4 points, 1 vector",
    ]
    with open_client(path=tmp_path) as client:
        client.delete_vectors("c", ["care-small"], points=[point_id("d0", 0)])
        client.set_payload("c", {"text": "另一段"}, points=[point_id("d1", 0)])
    broken = CliRunner().invoke(care, ["verify", "c", "--path", str(tmp_path)])
    assert isinstance(broken.exception, NotVerified)
    assert broken.stdout.startswith("care-small: 3 points have it, ") and ", 1 of an earlier text" in broken.stdout
