import json
import math
import re
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.corpus.rows import MAX_DEPTH, Fields, Reject, check_document, parse_line, parse_values
from care_qdrant.types import Document

FIELDS = Fields()
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def nested(depth: int) -> dict[str, object]:
    return {"a": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"not json", "is not JSON"),
        (b'{"id": "1", "text": "a"', "is not JSON"),
        (b"[1, 2]", "is a JSON array; expected an object with 'id' and 'text'"),
        (b'{"id": "1", "body": "a"}', "document has no 'text' (keys: id, body)"),
        (b'{"text": "a"}', "document has no 'id' (keys: text)"),
        (b"{}", "document has no 'id' (keys: none)"),
        (b'{"id": "1", "text": "  \\n "}', "'text' is empty"),
        (b'{"id": " ", "text": "a"}', "'id' is empty"),
        (b'{"id": "1", "text": 5}', "'text' is a JSON number; expected a string"),
        (b'{"id": ["1"], "text": "a"}', "'id' is a JSON array"),
        (b'{"id": 1.0, "text": "a"}', "'id' is a JSON number; expected a string or a whole number"),
        (b'{"id": true, "text": "a"}', "'id' is a JSON boolean"),
        (b'{"id": "1", "text": "a", "title": {}}', "'title' is a JSON object"),
        (b'{"id": "1", "text": "a", "metadata": "x"}', "'metadata' is a JSON string; expected an object"),
        (b'{"id": "1", "text": "\xff"}', "is not UTF-8: byte 0xff at position 21"),
        (b'{"id": "1", "text": "a\\ud800"}', "an unpaired surrogate (\\ud800)"),
        (b'{"id": "\\udfff", "text": "a"}', "an unpaired surrogate"),
        (b'{"id": "1", "text": "a\\u0000b"}', "'text' holds a NUL character"),
        (b'{"id": "1", "text": "a", "metadata": {"x": [1, -Infinity]}}', "'x' is -inf"),
        (b'{"id": "1", "text": "a", "metadata": {"x": 1e999}}', "'x' is inf"),
        (b'{"id": "1", "text": "a", "metadata": {"x": 9223372036854775808}}', "more than 64 bits"),
        (b'{"id": "1", "text": "a", "metadata": {"x": "\\ud800"}}', "'x' holds an unpaired surrogate"),
        (b'{"id": "1", "text": "a", "metadata": {"": 1}}', "'metadata key' is empty"),
        (b'{"id": "1", "text": "a", "metadata": {"_care": {}}}', "reserved key '_care'"),
        (b'{"id": "1", "text": "a", "doc_id": "2"}', "reserved key 'doc_id'"),
        (b'{"id": "1", "text": "a", "n": 1, "metadata": {"n": 2}}', "'n' is both a field of the row and a key"),
        (b"[" * 100_000, "is nested too deeply"),
        (json.dumps({"id": "1", "text": "a", "metadata": nested(MAX_DEPTH + 1)}).encode(), "nested deeper than 32"),
    ],
)
def test_bad_rows_say_what_is_wrong(raw: bytes, reason: str) -> None:
    row = parse_line(raw, 7, FIELDS)
    assert isinstance(row, Reject)
    assert row.line == 7
    assert reason in row.reason


def test_a_good_row_keeps_everything() -> None:
    raw = '{"id": 12, "title": "糖尿病", "text": "正文", "year": 2020, "metadata": {"dept": "内科"}}\r\n'.encode()
    row = parse_line(raw, 1, FIELDS)
    assert isinstance(row, Document)
    assert row == Document("12", "正文", "糖尿病", {"year": 2020, "dept": "内科"})


def test_null_title_and_metadata_are_absent() -> None:
    row = parse_line(b'{"id": "1", "text": "a", "title": null, "metadata": null}', 1, FIELDS)
    assert isinstance(row, Document)
    assert row == Document("1", "a")


def test_fields_can_have_other_names() -> None:
    row = parse_line(b'{"_id": "1", "body": "a", "text": "b"}', 1, Fields(id="_id", text="body"))
    assert isinstance(row, Reject)  # its own 'text' would hide the document's
    row = parse_line(b'{"_id": "1", "body": "a", "head": "b"}', 1, Fields("_id", "body", "head"))
    assert isinstance(row, Document)
    assert row == Document("1", "a", "b")


def test_documents_from_python_are_checked_too() -> None:
    assert isinstance(check_document(Document("1", "a", metadata={"x": object()})), Reject)
    assert isinstance(check_document(Document("1", "")), Reject)
    assert isinstance(check_document(Document("1", "a", metadata={"x": [1, None, True]})), Document)


@given(st.binary(max_size=200) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_no_line_raises(raw: bytes) -> None:
    row = parse_line(raw, 1, FIELDS)
    assert row.line == 1
    assert isinstance(row, Document) or row.reason


@given(JSON_VALUES, st.text(), st.text(min_size=1))
def test_what_passes_survives_json_and_utf8(value: object, text: str, key: str) -> None:
    row = parse_line(json.dumps({"id": "1", "text": text, "metadata": {key: value}}).encode(), 1, FIELDS)
    if isinstance(row, Document):
        document = row
        assert json.loads(json.dumps(dict(document.metadata), allow_nan=False)) == {key: value}
        assert document.text.encode().decode() == text
        assert text.strip()


def test_a_number_that_is_missing_is_no_field_and_a_blank_title_no_title() -> None:
    """Tables of pandas and polars write a missing number as NaN."""
    row = parse_line(b'{"id": "1", "text": "a", "title": " ", "x": NaN, "y": {"z": NaN, "w": 1}}', 1, Fields())
    assert isinstance(row, Document)
    assert (row.title, row.metadata) == ("", {"y": {"w": 1}})


def test_metadata_of_any_mapping_become_plain() -> None:
    metadata = MappingProxyType({"a": MappingProxyType({"b": (1, 2)})})
    document = check_document(Document("d", "头痛", metadata=metadata))
    assert isinstance(document, Document)
    assert document.metadata == {"a": {"b": [1, 2]}}
    json.dumps(document.metadata)
    bare = check_document(Document("d", "头痛", metadata=None))  # type: ignore[arg-type]  # as a caller without types
    assert isinstance(bare, Document) and bare.metadata == {}


@pytest.mark.parametrize(
    ("row", "document"),
    [
        ({"id": "1", "content": {"body": "a", "lang": "de"}}, Document("1", "a", metadata={"content": {"lang": "de"}})),
        ({"id": "1", "content": {"body": "a"}, "tags": [{"t": 1}]}, Document("1", "a", metadata={"tags": [{"t": 1}]})),
        (
            {"id": "1", "content.body": "a", "content": {"body": "b"}},
            Document("1", "a", metadata={"content": {"body": "b"}}),
        ),
        ({"id": "1", "content": {"body": "a", "title": "t"}}, Document("1", "a", "t")),
    ],
)
def test_a_part_of_a_document_may_stand_inside_an_object(row: dict[str, object], document: Document) -> None:
    fields = Fields(text="content.body", title="content.title")
    assert parse_line(json.dumps(row).encode(), 1, fields) == document


@pytest.mark.parametrize("row", [{"id": "1"}, {"id": "1", "content": "a"}, {"id": "1", "content": {"body": None}}])
def test_a_path_that_leads_nowhere_is_named(row: dict[str, object]) -> None:
    reject = parse_line(json.dumps(row).encode(), 1, Fields(text="content.body"))
    assert isinstance(reject, Reject) and reject.reason.startswith("document has no 'content.body' (keys: id")


def test_nan_is_a_missing_field() -> None:
    raw = b'{"id": "1", "text": "a", "title": NaN, "score": NaN, "metadata": {"x": NaN, "y": 1}}'
    assert parse_line(raw, 1, FIELDS) == Document("1", "a", metadata={"y": 1})
    reject = parse_line(b'{"id": "1", "text": NaN}', 1, FIELDS)
    assert isinstance(reject, Reject) and reject.reason == "document has no 'text' (keys: id)"


def test_a_number_that_is_missing_in_a_list_is_null() -> None:
    row = parse_line(b'{"id": "1", "text": "a", "x": [NaN, 1], "metadata": {"y": [[NaN]]}}', 1, FIELDS)
    assert isinstance(row, Document)
    assert row.metadata == {"x": [None, 1], "y": [[None]]}


@pytest.mark.parametrize("title", [None, "", " \n", "\u3000", "饮食", " 饮食 ", 0, False, 5, [], "a\0"])
@pytest.mark.parametrize("metadata", [None, {}, {"year": 2020, "x": [float("nan")], "y": float("nan")}, {"text": "a"}])
def test_a_document_of_a_program_is_that_of_a_file(title: object, metadata: object) -> None:
    row = {"id": "1", "text": "少盐", "title": title, "metadata": metadata}
    of_file = parse_line(json.dumps(row).encode(), 0, FIELDS)
    of_program = check_document(Document(**row))  # type: ignore[arg-type]  # as a caller without types
    assert type(of_file) is type(of_program)
    if isinstance(of_file, Document):
        assert of_file == of_program and of_file.title in ("", title)


@pytest.mark.parametrize("missing", [{}, {"body": None}, {"body": math.nan}, {"body": ""}, {"id": None, "_id": "1"}])
def test_what_is_missing_is_missing_however_it_is_written(missing: dict[str, object]) -> None:
    row = {"id": "1", **missing, "text": "少盐"}
    document = parse_line(json.dumps(row).encode(), 0, Fields(text="body,text"))
    assert isinstance(document, Document) and (document.id, document.text) == ("1", "少盐")


def test_metadata_that_are_no_object_reject_the_document() -> None:
    row = check_document(Document("a", "b", metadata=[1]))  # type: ignore[arg-type]  # of a program without types
    assert isinstance(row, Reject)
    assert "expected an object" in row.reason


@given(
    values=st.dictionaries(
        st.sampled_from(["text", "title", "body", "abstract", "year"]), st.sampled_from(["", "甲", "乙"]), min_size=1
    ),
    names=st.permutations(["body", "abstract", "text"]),
)
def test_the_first_text_that_is_not_empty_is_taken_whatever_else_a_row_has(
    values: dict[str, str], names: list[str]
) -> None:
    row = parse_values({"id": "1", **values}, 1, Fields(text=",".join(names)))
    filled = [values[name] for name in names if values.get(name)]
    if not filled:
        assert isinstance(row, Reject)
        return
    assert isinstance(row, Document)
    assert (row.text, row.title) == (filled[0], values.get("title", ""))
    assert not {"text", "title"} & row.metadata.keys()


@pytest.mark.parametrize(
    ("fields", "leftover", "advice"),
    [
        (Fields(text="body"), "text", "'text' besides 'body', .* --text-field body,text"),
        (Fields(title="head"), "title", "'title' besides 'head', which is stored as its title: rename it"),
    ],
)
def test_a_leftover_text_or_title_is_refused_with_advice_unless_it_is_empty(
    fields: Fields, leftover: str, advice: str
) -> None:
    """Neither may be lost, nor take the place of the other in the payload."""

    def parsed(value: str | None) -> Document | Reject:
        return parse_values({"id": "1", fields.text: "少盐", fields.title: "饮食", leftover: value}, 1, fields)

    refused = parsed("多喝水")
    assert isinstance(refused, Reject)
    assert re.search(advice, refused.reason)
    for empty in (None, ""):
        assert isinstance(parsed(empty), Document)
