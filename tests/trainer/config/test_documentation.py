"""The documented configurations are valid."""

import re
from pathlib import Path

import pytest
from care_trainer.config import load_run

DOCS = Path(__file__).parents[3] / "docs"
RECIPE, LEARN = ((DOCS / name).read_text(encoding="utf-8") for name in ("how-to/train-recipe.md", "how-to/learn.md"))


@pytest.mark.parametrize(("page", "stages"), [(RECIPE, ["document", "align", "joint"]), (LEARN, ["align"])])
def test_the_commented_configuration_is_valid(tmp_path: Path, page: str, stages: list[str]) -> None:
    (text,) = re.findall(r'```toml title="\w+\.toml"\n(.*?)```', page, re.S)
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    assert [stage.kind for stage in load_run(tmp_path / "run.toml").stage] == stages
