"""Answers of a server in place of what local mode says in its own words; ``recorded.json`` holds the server's side."""

import re

_WORDS: tuple[tuple[str, int, str], ...] = (
    (r"Collection (.+) not found", 404, "Not found: Collection `{}` doesn't exist!"),
    (r"Collection (.+) already exists", 409, "Wrong input: Collection `{}` already exists!"),
    (
        r"Alias (.+) already exists",
        400,
        "Wrong input: Can't create collection with name {}. Alias with the same name already exists",
    ),
    (r"Point (.+) is not found in the collection", 404, "Not found: No point with id {} found"),
    (r"(?:\w+ )?[vV]ector (.*) is not found in the collection", 400, "Wrong input: Not existing vector name error: {}"),
    (r"Wrong input: Unnamed vectors are not allowed.*()", 400, "Wrong input: Not existing vector name error: {}"),
    (
        r"shapes \(.*\) and \(.*\) not aligned: (\d+) \(dim 1\) != (\d+) \(dim 0\)",
        400,
        "Wrong input: Vector dimension error: expected dim: {}, got {}",
    ),
    (
        r"Point id (.+) is not a valid UUID",
        400,
        "Format error in JSON body: value {} is not a valid point ID, valid values are either an unsigned integer or "
        "a UUID",
    ),
)


def refusal(error: KeyError | ValueError) -> tuple[int, str]:
    """Return the status and the text with which a server refuses what raised this error in local mode."""
    if isinstance(error, KeyError):
        return 404, f"Not found: No point with id {error.args[0]} found"
    text = str(error)
    for pattern, code, words in _WORDS:
        if match := re.fullmatch(pattern, text):
            return code, words.format(*match.groups())
    return 400, text
