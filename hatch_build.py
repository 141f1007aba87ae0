"""Build hooks: wheels get the sample corpus that `care demo` reads, and a description whose links are absolute."""

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


class SampleHook(BuildHookInterface):
    """Add the sample to what a wheel holds; an editable installation reads it in the clone."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Include the file unless the build is editable: it would leave a folder next to the real package."""
        if version != "editable":
            build_data["force_include"]["examples/sample/corpus.jsonl"] = "care_qdrant/sample/corpus.jsonl"


class ReadmeHook(MetadataHookInterface):
    """Make the description on the package index of the README."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description, with links to the repository at the tag of this version."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata["urls"].get("Source")
        links = absolute_links(text, source and source.rstrip("/"), f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": links}


def absolute_links(text: str, source: str | None, tag: str) -> str:
    """Return a README whose relative links are absolute.

    Args:
        text: The README.
        source: Address of the repository; without one, links become their text and pictures go.
        tag: The tag of the repository that the links lead to.
    """

    def absolute(link: re.Match[str]) -> str:
        picture, label, target = link.groups()
        if source is None:
            return "" if picture else label
        return f"{picture}[{label}]({source}/{'raw' if picture else 'blob'}/{tag}/{target})"

    return _RELATIVE_LINK.sub(absolute, text)
