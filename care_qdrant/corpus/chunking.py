"""Cuts long documents at sentence ends into overlapping chunks that an encoder reads whole."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from care_qdrant.corpus.rows import Reject
from care_qdrant.encoders import TokenCounter
from care_qdrant.errors import UnusableText
from care_qdrant.types import Chunk, Document, embedded_text, is_blank

Overflow = Literal["split", "truncate"]
"""Treatment of a document that is longer than the encoder reads."""

OVERLAP_SHARE = 1 / 8
"""Part of a chunk that the next one repeats, in whole sentences, as a fraction of the encoder's maximum."""

_SENTENCE_END = re.compile(r"(?:[。！？；!?;…]|\.(?=\s|$))+[”’」』）》)\]\"']*\s*|\n\s*")
_CLAUSE_END = re.compile(r"[，、,：:）)\s]")


class Span(NamedTuple):
    """A part of a text, as in ``text[start:end]``."""

    start: int
    end: int


def cut_documents(
    documents: Sequence[Document], counter: TokenCounter, overflow: Overflow
) -> Iterator[list[Chunk] | Reject]:
    """Return the chunks of each document, in order; or why it cannot be cut or encoded."""
    lengths = count_or_fail([embedded_text(document.title, document.text) for document in documents], counter)
    for document, tokens in zip(documents, lengths, strict=True):
        if isinstance(tokens, str):
            yield Reject.of(document, f"text {tokens}")
        elif tokens <= counter.max_tokens or overflow == "truncate":
            yield [Chunk(document, document.text, tokens=min(tokens, counter.max_tokens))]
        else:
            try:
                yield _cut(document, counter)
            except UnusableText as error:  # of a part alone
                yield Reject.of(document, str(error))


def count_or_fail(texts: Sequence[str], counter: TokenCounter) -> list[int | str]:
    """Return the tokens of each text, or why the encoder cannot read it: the tokenizer fails, or makes no token."""
    problems: Mapping[int, str] = {}
    try:
        [nothing, *counts] = counter.count_tokens(["", *texts])
    except UnusableText as error:
        problems = {place - 1: problem for place, problem in error.problems.items()}
        sound = [text for place, text in enumerate(texts) if place not in problems]
        [nothing, *counts] = counter.count_tokens(["", *sound])
    left = iter(counts)
    return [problems.get(place) or _or_no_token(next(left), text, nothing, counter) for place, text in enumerate(texts)]


def _or_no_token(tokens: int, text: str, nothing: int, counter: TokenCounter) -> int | str:
    # A blank that ends the prompt may be part of a text's first token.
    is_read = tokens > nothing or counter.count_tokens([text * 3])[0] > nothing
    return tokens if is_read else "has no token that the encoder reads"


def _cut(document: Document, counter: TokenCounter) -> list[Chunk] | Reject:
    frame = counter.count_tokens([document.title])[0]
    if frame > counter.max_tokens // 2:
        reason = f"title leaves no room for the text: {frame} of the encoder's {counter.max_tokens} tokens"
        return Reject.of(document, reason)
    spans = split(document.text, document.title, counter)
    texts = [document.text[span.start : span.end] for span in spans]
    lengths = counter.count_tokens([embedded_text(document.title, text) for text in texts])
    return [
        Chunk(document, text, number, len(spans), min(tokens, counter.max_tokens))
        for number, (text, tokens) in enumerate(zip(texts, lengths, strict=True))
    ]


def split(text: str, title: str, counter: TokenCounter) -> list[Span]:
    """Return the spans of the chunks of a text.

    Together they cover the text, but for white space in front of it that takes more tokens than an overlap, and for
    chunks that would show nothing. None is longer than the encoder's maximum, title, prompt and special tokens
    included. Where a sentence alone is too long it is cut at a comma or a space, and at last anywhere.
    """
    frame, empty, blank = counter.count_tokens([title, "", text[: len(text) - len(text.lstrip())]])
    budget = counter.max_tokens - frame
    overlap_tokens = int(counter.max_tokens * OVERLAP_SHARE)
    # Behind a title these blanks would be encoded, and no budget would make the first chunk with them short enough.
    start = len(text) - len(text.lstrip()) if blank - empty > overlap_tokens else 0
    while True:
        pieces = _pieces(text, start, counter, budget)
        spans = _join_blank(text, _pack(pieces, budget, overlap_tokens))
        lengths = counter.count_tokens([embedded_text(title, text[span.start : span.end]) for span in spans])
        if max(lengths) <= counter.max_tokens or budget <= 1:
            # An encoder refuses a chunk of characters without a width, and with it the whole document.
            return [span for span in spans if not is_blank(text[span.start : span.end])] or spans
        # A whole can have more tokens than its parts together: aim lower.
        budget = budget * 9 // 10


def sentence_spans(text: str) -> list[Span]:
    """Cut a text after each sentence end, Chinese or Latin; together the spans are the text."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    borders = sorted({0, *ends, len(text)})
    return _join_blank(text, [Span(start, end) for start, end in pairwise(borders)])


class _Piece(NamedTuple):
    span: Span
    tokens: int


def _pieces(text: str, start: int, counter: TokenCounter, budget: int) -> list[_Piece]:
    """Return the sentences from a position on, those above the budget cut further."""
    empty = counter.count_tokens([""])[0]
    finished: list[_Piece] = []
    spans = [Span(start + span.start, start + span.end) for span in sentence_spans(text[start:])]
    while spans:
        counts = counter.count_tokens([text[span.start : span.end] for span in spans])
        too_long: list[Span] = []
        for span, count in zip(spans, counts, strict=True):
            tokens = max(1, count - empty)
            if tokens <= budget or span.end - span.start < 2:
                finished.append(_Piece(span, tokens))
            else:
                too_long += _halve(text, span)
        spans = too_long
    return sorted(finished)


def _halve(text: str, span: Span) -> tuple[Span, Span]:
    """Cut a span after the clause end that is nearest to its middle, or in the middle."""
    middle = (span.start + span.end) // 2
    quarter = (span.end - span.start) // 4
    ends = [match.end() for match in _CLAUSE_END.finditer(text, middle - quarter, middle + quarter)]
    cut = min(ends, key=lambda end: abs(end - middle), default=middle)
    cut = min(max(cut, span.start + 1), span.end - 1)
    return Span(span.start, cut), Span(cut, span.end)


def _pack(pieces: Sequence[_Piece], budget: int, overlap_tokens: int) -> list[Span]:
    """Fill chunks with pieces from left to right; each chunk repeats the last pieces of the one before."""
    chunks: list[list[_Piece]] = [[pieces[0]]]
    for piece in pieces[1:]:
        if sum(part.tokens for part in chunks[-1]) + piece.tokens > budget:
            room = min(overlap_tokens, budget - piece.tokens)
            chunks.append([*_tail(chunks[-1], room), piece])
        else:
            chunks[-1].append(piece)
    return [Span(chunk[0].span.start, chunk[-1].span.end) for chunk in chunks]


def _tail(chunk: Sequence[_Piece], room: int) -> list[_Piece]:
    """Return the last pieces of a chunk that fit into ``room`` tokens; never the whole chunk."""
    tail: list[_Piece] = []
    for piece in reversed(chunk[1:]):
        room -= piece.tokens
        if room < 0:
            break
        tail.insert(0, piece)
    return tail


def _join_blank(text: str, spans: Sequence[Span]) -> list[Span]:
    """Let white space belong to the sentence before it, or to the first one."""
    joined: list[Span] = []
    for span in spans:
        if joined and not (text[span.start : span.end].strip() and text[joined[-1].start : joined[-1].end].strip()):
            joined[-1] = Span(joined[-1].start, span.end)
        else:
            joined.append(span)
    return joined
