"""A dry run of a bulk job: its numbers follow from the texts and from what this repository has measured."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from care_qdrant.bulk.forecast import CONSTANTS
from care_qdrant.cli import care
from tests.tiny import medical_texts

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def dry_run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    texts = medical_texts(40)
    lines = [json.dumps({"id": str(n), "text": text}, ensure_ascii=False) for n, text in enumerate(texts)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    result = CliRunner().invoke(
        care, ["bulk", "plan", f"{tmp_path}/corpus.jsonl", f"{tmp_path}/job", "--dry-run", "--json", *arguments]
    )
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "job").exists()
    return dict(json.loads(result.stdout))


def test_a_forecast_is_in_proportion_to_the_documents(tmp_path: Path) -> None:
    speed = ("--tokens-per-second", "1000")
    one, many = dry_run(tmp_path, *speed), dry_run(tmp_path, "--documents", "40000000", *speed)
    assert (one["documents"], one["points"], one["extrapolated"]) == (40, 40, False)
    assert (many["documents"], many["points"], many["extrapolated"]) == (40_000_000, 40_000_000, True)
    assert many["tokens"] == 1_000_000 * one["tokens"]
    assert many["encode_hours"] == pytest.approx(many["tokens"] / 1_000 / 3_600, rel=0.01)
    assert many["memory_bytes"]["float32"] > many["memory_bytes"]["int8, originals on disk"]
    assert many["nodes"]["float32"] > 0
    lengths = one["tokens_of_a_document"]
    assert lengths["median"] <= lengths["90 %"] <= lengths["longest"]
    assert "99 %" not in lengths, "forty documents have none"


def test_without_a_speed_this_machine_is_timed(tmp_path: Path) -> None:
    report = dry_run(tmp_path)
    assert report["tokens_per_second"] > 0
    assert "cost" not in report


def test_constants_are_those_of_the_result_files() -> None:
    large, small = (
        json.loads((RESULTS / f"{name}.json").read_text()) for name in ("server-index-1000000", "server-index-100000")
    )
    ways, kinds = large["ways"], small["ways"]
    plain = kinds["float32"]["storage_bytes_per_point"]
    memory = max(
        way["memory"]["resident_mib"] * 2**20 / way["points"]
        - {"float32": 1_024, "int8, originals on disk": 256}.get(name, 0)
        for name, way in ways.items()
    )
    expected = {
        "disk_bytes_beside_vector": ways["float32"]["storage_bytes_per_point"] - 4 * 256,
        "memory_bytes_beside_vector": memory,
        **{
            name: (kinds[name]["storage_bytes_per_point"] - plain) / 256
            for name in ("int8", "turbo", "product", "binary")
        },
    }
    assert {name: each.value for name, each in CONSTANTS.items()} == pytest.approx(expected, rel=0.01)
