"""Keeps secrets out of what is printed, logged and written: passwords in URLs, keys in command lines, known keys."""

import re

_HIDDEN = "***"
_SHORTEST = 8
"""Characters of the shortest known secret: a shorter one may be an ordinary word, and is hidden only where the patterns
below find it."""

_PATTERNS = (
    # user:password@ of a URL, whatever the scheme; the password may hold an @.
    (re.compile(r"(?<=://)[^/\s'\"]*@"), f"{_HIDDEN}@"),
    # --api-key VALUE, --document-server-key=VALUE, as a command line has them.
    (re.compile(r"(--[a-z-]*(?:key|token|password|secret)[= ])(?!-)\S+"), rf"\1{_HIDDEN}"),
    # ?api_key=VALUE of a URL.
    (re.compile(r"([?&](?:api[-_]?key|token|password|secret)=)[^&\s'\"]+", re.IGNORECASE), rf"\1{_HIDDEN}"),
)
_known: set[str] = set()


def remember_secret(value: str | None) -> None:
    """Let `redact` hide a value from now on; None and very short values are ignored."""
    if value is not None and len(value) >= _SHORTEST:
        _known.add(value)


def redact(text: str) -> str:
    """Return a text with ``***`` in place of secrets."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    for value in _known:
        text = re.sub(rf"(?<![\w-]){re.escape(value)}(?![\w-])", _HIDDEN, text)
    return text
