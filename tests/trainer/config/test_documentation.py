"""The documented configurations are valid, and the page of training keys has every key with its default."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from care_trainer.config import (
    STAGE_TYPES,
    Data,
    Diversify,
    Evaluation,
    Export,
    Lora,
    Run,
    Scratch,
    Stage,
    StoredDocuments,
    Task,
    Tower,
    Vocabulary,
    load_run,
)

DOCS = Path(__file__).parents[3] / "docs"
KEYS, RECIPE, LEARN = (
    (DOCS / name).read_text(encoding="utf-8")
    for name in ("reference/training-keys.md", "how-to/train-recipe.md", "how-to/learn.md")
)
TABLES = {
    "": Run,
    "tasks.NAME": Task,
    "query, document": Tower,
    "query.scratch": Scratch,
    "document.collection": StoredDocuments,
    "document.lora": Lora,
    "vocabulary": Vocabulary,
    "data.NAME": Data,
    "data.NAME.diversify": Diversify,
    "evaluation": Evaluation,
    "export": Export,
    "stage": Stage,
}


def _default(field: Any) -> str:
    value = field.default
    if value is dataclasses.MISSING:
        return "required"
    if getattr(value, "default_factory", None) is not None or value in ("", ()):
        return "empty"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, int | float) else value if isinstance(value, str) else ", ".join(value)


def _keys() -> Iterator[tuple[str, str, str]]:
    tables = {"query", "document", *(name.split(".")[0] for name in TABLES)}
    for table, model in TABLES.items():
        for field in dataclasses.fields(model):
            if model is not Run or field.name not in tables - {"tasks"}:
                yield table, field.name, _default(field)
    shared = {field.name for field in dataclasses.fields(Stage)}
    for model in dict.fromkeys(STAGE_TYPES.values()):
        for field in dataclasses.fields(model):
            if field.name not in shared:
                yield "stage", field.name, _default(field)


@pytest.mark.parametrize(("table", "key", "default"), sorted(set(_keys())))
def test_the_guide_has_every_key_with_its_default(table: str, key: str, default: str) -> None:
    heading = f"**`[{table}]`**" if table not in ("", "stage") else {"": "**Run**", "stage": "**`[[stage]]`**"}[table]
    section = KEYS.split(heading)[1].split("\n**")[0]
    rows = re.findall(rf"^\| `{key}` \|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|$", section, re.M)
    assert default in [row[2].strip() for row in rows]


@pytest.mark.parametrize(("page", "stages"), [(RECIPE, ["document", "align", "joint"]), (LEARN, ["align"])])
def test_the_commented_configuration_is_valid(tmp_path: Path, page: str, stages: list[str]) -> None:
    (text,) = re.findall(r'```toml title="\w+\.toml"\n(.*?)```', page, re.S)
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    assert [stage.kind for stage in load_run(tmp_path / "run.toml").stage] == stages
