"""Puts the sample corpus into wheels, where `care demo` reads it; an editable installation reads it in the clone."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SampleHook(BuildHookInterface):
    """Add the sample to what a wheel holds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Include the file unless the build is editable: it would leave a folder beside the real package."""
        if version != "editable":
            build_data["force_include"]["examples/sample/corpus.jsonl"] = "care_qdrant/sample/corpus.jsonl"
