"""Formats and compressions of a corpus by the endings of file names; imports no reader, so that help opens fast."""

from pathlib import PurePath
from typing import Literal, get_args

Format = Literal["jsonl", "json", "csv", "tsv", "parquet", "md", "txt"]
FORMATS: tuple[Format, ...] = get_args(Format)
ENDINGS: dict[str, Format] = {f".{form}": form for form in FORMATS} | {
    ".ndjson": "jsonl",
    ".tab": "tsv",
    ".markdown": "md",
}
"""Formats by the endings of names, in lower case."""
COMPRESSIONS = (".gz", ".zst")
"""Endings of compressed files, in lower case."""
READABLE = f"{', '.join(f'.{form}' for form in FORMATS)}, each also as {' or '.join(COMPRESSIONS)}"
"""The formats in the words of a message."""


def compression_of(name: str) -> str | None:
    """Return the ending of a compressed file's name, in lower case; None for any other name."""
    ending = PurePath(name).suffix.lower()
    return ending if ending in COMPRESSIONS else None


def format_of(name: str) -> Format | None:
    """Return the format that the ending of a name says, in any case, also below a compression; None for no format."""
    while compression_of(name) is not None:
        name = PurePath(name).stem
    return ENDINGS.get(PurePath(name).suffix.lower())
