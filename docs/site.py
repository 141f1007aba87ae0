"""Hooks of mkdocs: links that leave the documentation name their file, and language models get pages as Markdown.

`llms.txt` (https://llmstxt.org) lists the pages of the navigation, each of which is in the site as Markdown as well;
`llms-full.txt` holds all of them.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

_RELATIVE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)[^)]*\)")
_CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_PROSE = re.compile(r"(?:^|\n\n)\n*+(?![ #|<!-]|\* |\d\.)(.+?)(?=\n\n|$)", re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_SENTENCE = re.compile(r".+?(?:[.?](?=\s|$)|。)|.+")

_markdown: dict[str, str] = {}
"""Pages of this build as Markdown, by their path under the documentation."""
_navigation: list[Any] = []
"""Sections and pages of this build, in the order of the site."""


def on_nav(nav: Any, **_rest: Any) -> None:
    """Keep the order of the pages."""
    _markdown.clear()
    _navigation[:] = nav.items


def on_page_markdown(markdown: str, page: Any, **_rest: Any) -> str:
    """Return the page with ``[text](../../file)`` as the text and the file's path in the repository."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def named(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[0] if path.startswith("docs/") else f"{link[1]} (`{path}`)"

    _markdown[page.file.src_uri] = _RELATIVE.sub(named, markdown)
    return _markdown[page.file.src_uri]


def on_post_build(config: Any, **_rest: Any) -> None:
    """Write the pages as Markdown, a list of them, and one file of all."""
    site = Path(config["site_dir"])
    index, whole = [f"# {config['site_name']}", f"> {config['site_description']}"], []
    for item in _navigation:
        pages = list(_pages(item))
        index.append("\n".join([f"## {item.title}", "", *map(_entry, pages)]))
        for path in (page.file.src_uri for page in pages):
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(_markdown[path], encoding="utf-8")
            whole.append(f"<!-- {path} -->\n\n{_markdown[path].strip()}")
    (site / "llms.txt").write_text("\n\n".join(index) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(whole) + "\n", encoding="utf-8")


def _pages(item: Any) -> Any:
    """Return the pages of an entry of the navigation, which is a page or a section."""
    if item.is_page:
        return [item]
    return [page for child in item.children for page in _pages(child)]


def _entry(page: Any) -> str:
    """Return a page's line of the list: its title, its place, and its first sentence."""
    prose = _PROSE.search(_CODE.sub("", _markdown[page.file.src_uri]))
    said = _SENTENCE.match(" ".join(_LINK.sub(r"\1", prose[1]).replace("**", "").split())) if prose else None
    return f"- [{page.title}]({page.file.src_uri})" + (f": {said[0].rstrip('.:。：')}" if said else "")
