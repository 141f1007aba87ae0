import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from care_trainer.config import Data
from care_trainer.data.read import Pair, iter_pairs, iter_texts, license_of, pairs_in, texts_in
from care_trainer.data.table import pair_rows
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.errors import InputError
from tests.trainer.tiny_run import write_jsonl

SIMPLE = {"query": "q", "positive": "p", "negatives": ["n"], "source": "s", "license": "MIT"}


def _data(tmp_path: Path, *rows: Any, **settings: Any) -> tuple[Data, Path]:
    write_jsonl(tmp_path / "rows.jsonl", rows)
    return Data(files=("rows.jsonl",), **settings), tmp_path


def test_simple_pairs_and_flag_embedding_rows_mean_the_same(tmp_path: Path) -> None:
    flag = {"query": "q", "pos": ["p", "p2"], "neg": ["n"], "pos_scores": [1, 1], "prompt": "问："}
    found = list(iter_pairs(*_data(tmp_path, SIMPLE, flag)))
    own = {"source": "rows.jsonl", "prompt": "问："}
    assert found == [Pair("q", "p", ("n",), "s"), Pair("q", "p", ("n",), **own), Pair("q", "p2", ("n",), **own)]


def test_a_gzipped_file_reads_as_a_plain_one(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.write(json.dumps(SIMPLE) + "\n\n")
    assert list(iter_pairs(Data(files=("rows.jsonl.gz",)), tmp_path)) == [Pair("q", "p", ("n",), "s")]


def test_a_gzipped_file_that_is_cut_off_or_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(SIMPLE).encode() * 50)[:-20])
    for content in (path.read_bytes(), b'{"query": "q", "positive": "p"}'):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"rows.jsonl.gz: is cut off, or not what its name says"):
            list(iter_pairs(Data(files=(path.name,)), tmp_path))


@pytest.mark.parametrize("opener", [open, gzip.open])
def test_a_file_of_another_encoding_is_refused_by_its_name_and_a_byte_order_mark_is_none(
    tmp_path: Path, opener: Callable[..., Any]
) -> None:
    row = json.dumps({"query": "发烧怎么办", "positive": "多喝水，注意休息。"}, ensure_ascii=False) + "\n"
    data = Data(files=("rows.jsonl.gz" if opener is gzip.open else "rows.jsonl",))
    with opener(tmp_path / data.files[0], "wb") as stream:
        stream.write(row.encode("utf-8-sig"))
    assert [pair.query for pair in iter_pairs(data, tmp_path)] == ["发烧怎么办"]
    for encoding, reads_as in (("gb18030", ""), ("utf-16", "it reads as utf-16: ")):
        with opener(tmp_path / data.files[0], "wb") as stream:
            stream.write((row * 20).encode(encoding))
        with pytest.raises(InputError, match=f"is not UTF-8 .*{reads_as}save it as UTF-8"):
            list(iter_pairs(data, tmp_path))


def test_a_table_is_no_file_of_pairs(tmp_path: Path) -> None:
    (tmp_path / "faq.csv").write_text("query,positive\n发烧怎么办,多喝水。\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"faq.csv:1: not JSON .*expected JSON lines, one object a line"):
        list(iter_pairs(Data(files=("faq.csv",)), tmp_path))


def test_a_repeated_pair_counts_once_and_texts_are_cut_first(tmp_path: Path) -> None:
    longer = {"query": "qq", "positive": "pppp", "negatives": ["nn"]}
    data, root = _data(tmp_path, SIMPLE, SIMPLE, longer, max_characters=1)
    assert list(iter_pairs(data, root)) == [Pair("q", "p", ("n",), "s")]


_WORDS = st.sampled_from(["a", "b", "c"])
_ROWS = st.one_of(
    st.fixed_dictionaries({"query": _WORDS, "positive": _WORDS, "negative": _WORDS}, optional={"prompt": _WORDS}),
    st.fixed_dictionaries({"query": _WORDS, "positive": _WORDS}),
    st.fixed_dictionaries({"sentence1": _WORDS, "sentence2": _WORDS, "score": st.sampled_from([0, 0.5, 1])}),
)


@given(st.lists(_ROWS, min_size=1, max_size=20))
def test_a_row_is_left_out_only_where_training_would_read_the_same_again(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        data, _ = _data(root, *rows)
        expected = list(dict.fromkeys(pairs_in(((row, "rows.jsonl:1") for row in rows), data)))
        assert list(iter_pairs(data, root)) == expected
        if len({pair.score is None for pair in expected}) == 1:
            columns = pair_rows(data, root, root / "rows").columns
            assert columns["negatives"][:] == [list(pair.negatives) for pair in expected]


def test_licenses_and_sources_are_left_out(tmp_path: Path) -> None:
    closed = {**SIMPLE, "query": "closed", "license": "research-only"}
    dropped = {**SIMPLE, "query": "dropped", "source": "old"}
    data, root = _data(
        tmp_path, SIMPLE, closed, dropped, licenses_excluded=("research-only",), weights={"old": 0.0, "s": 0.5}
    )
    assert [pair.query for pair in iter_pairs(data, root)] == ["q"]
    assert pair_rows(data, root, tmp_path / "rows").weights.tolist() == [0.5]


@pytest.mark.parametrize("key", ["license", "licence"])
def test_a_license_counts_in_both_spellings(tmp_path: Path, key: str) -> None:
    rows = [{"query": f"q{at}", "positive": "p", key: name} for at, name in enumerate(("CC0", "research-only"))]
    without = {"query": "none", "positive": "p"}
    data, root = _data(tmp_path, *rows, without, licenses_excluded=("research-only", "unstated"))
    assert [pair.query for pair in iter_pairs(data, root)] == ["q0", "none"]
    assert [license_of(row) for row in (*rows, without)] == ["CC0", "research-only", ""]


def test_two_texts_with_a_score_are_a_pair_and_single_texts(tmp_path: Path) -> None:
    data, root = _data(tmp_path, {"sentence1": "a", "sentence2": "b", "score": 1, "source": "sts"})
    assert list(iter_pairs(data, root)) == [Pair("a", "b", (), "sts", score=1.0)]
    assert [text.text for text in iter_texts(data, root)] == ["a", "b"]


def test_a_row_without_a_source_has_the_name_of_its_file(tmp_path: Path) -> None:
    plain = {"query": "plain", "positive": "p"}
    assert [pair.source for pair in iter_pairs(*_data(tmp_path, SIMPLE, plain))] == ["s", "rows.jsonl"]
    assert [pair.query for pair in iter_pairs(*_data(tmp_path, SIMPLE, plain, weights={"s": 0}))] == ["plain"]


def test_texts_are_both_sides_of_pairs_and_single_texts_once(tmp_path: Path) -> None:
    found = list(iter_texts(*_data(tmp_path, SIMPLE, {"text": "t"}, {"text": "q"})))
    assert [text.text for text in found] == ["q", "p", "n", "t"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"query": "q"}, r"rows.jsonl:1: is not a pair \(keys: query\)"),
        ({"text": "t"}, "is not a pair"),
        ({"query": 3, "positive": "p"}, "is not a pair"),
        ({"query": " ", "positive": "p"}, "is not a pair"),
        ({"query": "q", "pos": ["p", ""]}, "is not a pair"),
        ({"query": "q", "positive": "p", "negatives": ["n", 3]}, "is not a pair"),
        ({"query": "q", "positive": "p", "negatives": ["\n"]}, "is not a pair"),
        (
            {"sentence1": "a", "sentence2": "b"},
            r"rows.jsonl:1: is not a pair with a score \(keys: sentence1, sentence2\)",
        ),
        ({"sentence1": "a", "sentence2": "", "score": 1}, "is not a pair with a score"),
        ({"sentence1": "a", "sentence2": "b", "score": True}, "is not a pair with a score"),
        ({"sentence1": "a", "sentence2": "b", "score": 10**400}, "is not a pair with a score"),
        (["q", "p"], "expected an object, found list"),
    ],
)
def test_a_row_that_is_no_pair_is_named(tmp_path: Path, row: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        list(iter_pairs(*_data(tmp_path, row)))


def test_missing_broken_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.jsonl: no such file; set data_root"):
        list(iter_pairs(Data(files=("none.jsonl",)), tmp_path))
    (tmp_path / "rows.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"rows.jsonl:1: not JSON"):
        list(iter_pairs(Data(files=("rows.jsonl",)), tmp_path))
    for half in (r"\ud83d", r"\uD83D"):
        (tmp_path / "rows.jsonl").write_text(f'{{"query": "{half}", "positive": "p"}}', encoding="utf-8")
        with pytest.raises(InputError, match=r"rows.jsonl:1: holds an unpaired surrogate"):
            list(iter_pairs(Data(files=("rows.jsonl",)), tmp_path))
    (tmp_path / "rows.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="no row is left"):
        list(iter_texts(Data(files=("rows.jsonl",)), tmp_path))


def test_numbered_negatives_are_read_in_their_order() -> None:
    """The miner of sentence-transformers writes negative_1 to negative_n."""
    numbered = {f"negative_{number}": f"n{number}" for number in (10, 2, 1)}
    row = {"query": "q", "positive": "p", "negatives": ["n0"], **numbered, "negative_3": None}
    [pair] = pairs_in([(row, "rows.jsonl:1")], Data(files=("rows.jsonl",)))
    assert pair.negatives == ("n0", "n1", "n2", "n10")
    assert "n10" in [
        text.text for text in texts_in([(row, "rows.jsonl:1")], Data(files=("x",)), ["document"], joined=False)
    ]
    with pytest.raises(InputError, match="is not a pair"):
        list(pairs_in([({**row, "negative_3": " "}, "rows.jsonl:1")], Data(files=("rows.jsonl",))))
