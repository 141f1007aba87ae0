"""The packages of the trainer import each other in one direction."""

import ast
from pathlib import Path

ORDER = (
    ("config", "disk", "distributed"),
    ("data",),
    ("models", "evaluation"),
    ("losses",),
    ("learn",),
    ("training",),
    ("stages",),
    ("pipeline",),
    ("export",),
    ("rehearse",),
    ("start",),
    ("cli",),
)
"""From the bottom to the top; packages of one row know nothing of each other."""
PACKAGE = Path(__file__).parents[2] / "trainer/care_trainer"


def _imported(path: Path) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    names = {str(node.module) for node in nodes if str(node.module).startswith("care_trainer.")}
    names |= {f"care_trainer.{alias.name}" for node in nodes if node.module == "care_trainer" for alias in node.names}
    return {name.split(".")[1] for name in names}


def test_imports_point_downwards() -> None:
    floor = {name: number for number, names in enumerate(ORDER) for name in names}
    parts = {path.name.removesuffix(".py"): path for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert set(parts) - {"__init__", "__pycache__", "configs"} == set(floor)
    upwards = [
        f"{file.relative_to(PACKAGE)} imports {other}"
        for name in floor
        for file in (parts[name].rglob("*.py") if parts[name].is_dir() else [parts[name]])
        for other in _imported(file) - {name}
        if floor[other] >= floor[name]
    ]
    assert upwards == []
