"""Saved results that are compared: each query with itself."""

import json
import random
import shutil
from pathlib import Path

import pytest
from care_benchmarks.comparison import compare_results
from care_benchmarks.results import PER_QUERY_FILE
from care_benchmarks.statistics import Interval

from care_qdrant.errors import InputError

SAMPLE = Path(__file__).parents[2] / "benchmarks" / "results" / "sample"


def test_results_are_paired_by_query_and_not_by_place(tmp_path: Path) -> None:
    """Another version of mteb may load the queries of a task in another order."""
    copy, order = Path(shutil.copytree(SAMPLE, tmp_path / "copy")), random.Random(0)
    entries = json.loads((copy / PER_QUERY_FILE).read_text(encoding="utf-8"))
    for entry in entries:
        places = order.sample(range(len(entry["queries"])), len(entry["queries"]))
        entry["queries"] = [entry["queries"][place] for place in places]
        entry["scores"] = {name: [values[place] for place in places] for name, values in entry["scores"].items()}
    (copy / PER_QUERY_FILE).write_text(json.dumps(entries), encoding="utf-8")
    for alone, paired in zip(compare_results([SAMPLE]), compare_results([SAMPLE, copy]), strict=True):
        intervals = {each.other.partition("/")[2]: each.interval for each in alone.comparisons}
        for found in paired.comparisons:
            assert found.interval == intervals.get(found.other.partition("/")[2], Interval(0.0, 0.0)), found.other
    entries[0]["queries"][0] = "another"
    (copy / PER_QUERY_FILE).write_text(json.dumps(entries), encoding="utf-8")
    with pytest.raises(InputError, match="of other queries"):
        compare_results([SAMPLE, copy])
