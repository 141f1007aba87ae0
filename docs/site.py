"""Hook of mkdocs: links that leave the documentation name their file, since the site holds only this folder."""

import posixpath
import re
from typing import Any

_RELATIVE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)[^)]*\)")


def on_page_markdown(markdown: str, page: Any, **_rest: Any) -> str:
    """Return the page with ``[text](../../file)`` as the text and the file's path in the repository."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def named(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[0] if path.startswith("docs/") else f"{link[1]} (`{path}`)"

    return _RELATIVE.sub(named, markdown)
