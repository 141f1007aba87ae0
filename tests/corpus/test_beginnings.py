"""Corpora whose documents begin alike: they are noticed, and what they share can be cut off."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from qdrant_client import QdrantClient

from care_qdrant.cli.ingest import command
from care_qdrant.corpus.beginnings import Beginnings
from care_qdrant.corpus.rows import Fields
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.rows import Reading
from tests.tiny import HashModel, medical_texts

LETTERHEAD = "某某医院门诊健康教育处方\n地址：人民路1号\n"


@given(st.integers(0, 60), st.integers(0, 60), st.text(min_size=8, max_size=30))
def test_a_shared_beginning_is_told_from_a_fifth_of_the_documents(alike: int, others: int, shared: str) -> None:
    beginnings = Beginnings()
    for number in range(alike):
        beginnings.add(f"{shared}{number % 10}各说各的")
    for number in range(others):
        beginnings.add(f"{number:08}号文件")
    found = beginnings.most_common()
    if alike >= 20 and alike >= 0.2 * (alike + others):
        assert found == (shared, alike / (alike + others))
    elif not shared.startswith("0"):
        assert found is None


def test_a_letterhead_is_reported_and_can_be_cut_off(client: QdrantClient, tmp_path: Path) -> None:
    texts = medical_texts(30)
    corpus = tmp_path / "corpus.jsonl"
    lines = [{"id": str(number), "text": LETTERHEAD + text} for number, text in enumerate(texts)]
    corpus.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    report = ingest(corpus, HashModel(max_tokens=512), client, "whole")
    assert report.same_beginning is not None and report.same_beginning.startswith(LETTERHEAD)
    assert report.same_beginning_share == 1.0
    reading = Reading(Fields(skip_beginning=r"某某医院.*\n地址：.*\n"))
    report = ingest(corpus, HashModel(max_tokens=512), client, "cut", reading=reading)
    assert report.same_beginning is None
    payloads = [point.payload or {} for point in client.scroll("cut", limit=100)[0]]
    assert sorted(payload["text"] for payload in payloads) == sorted(texts)


def test_what_is_no_regular_expression_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "1", "text": "发烧"}\n', encoding="utf-8")
    result = CliRunner().invoke(command, [str(tmp_path / "a.jsonl"), "--skip-beginning", "("])
    assert result.exit_code == 2 and "--skip-beginning" in result.output and "not a regular expression" in result.output


@pytest.mark.parametrize("title", ["", "高血压"])
def test_an_id_made_of_the_text_stays_when_its_beginning_is_cut(
    client: QdrantClient, tmp_path: Path, title: str
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"title": title, "text": LETTERHEAD + "少吃盐"}), encoding="utf-8")
    for pattern in (None, r"某某医院.*\n地址：.*\n"):
        ingest(corpus, HashModel(), client, "corpus", reading=Reading(Fields(id=":hash", skip_beginning=pattern)))
    [point] = client.scroll("corpus")[0]
    assert (point.payload or {})["text"] == "少吃盐"
