"""Hook of mkdocs: links that leave the documentation name their file, since the site holds only this folder."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)[^)]*\)")


def on_page_markdown(markdown: str, **_page: Any) -> str:
    """Return the page with ``[text](../file)`` as the text and the file's path in the repository."""
    return _OUTSIDE.sub(r"\1 (`\2`)", markdown)
