"""What the measurement of a server's indexes computes itself: exact neighbours, and where memory is limited."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.perf import exact
from benchmarks.perf.exact import nearest, recall
from benchmarks.perf.memory_group import own_group


def test_the_nearest_rows_are_those_of_a_full_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "BLOCK", 64)
    rng = np.random.default_rng(0)
    rows, queries = rng.normal(size=(300, 8)).astype(np.float32), rng.normal(size=(5, 8)).astype(np.float32)
    keep = rng.random((5, 300)) < 0.3
    keep[4] = False
    keep[4, 7] = True
    scores = queries @ rows.T
    assert nearest(rows, queries, 10) == [set(row[:10]) for row in np.argsort(-scores, axis=1).tolist()]
    masked = np.argsort(-np.where(keep, scores, -np.inf), axis=1).tolist()
    assert nearest(rows, queries, 10, keep) == [*(set(row[:10]) for row in masked[:4]), {7}]


def test_recall_leaves_out_queries_that_have_nothing_to_find() -> None:
    assert recall([{1, 2}, set(), {3}], [{1, 9}, {5}, {3}]) == 0.75


@pytest.mark.parametrize(
    ("groups", "mounts", "expected"),
    [
        (
            "5:cpu:/\n4:memory:/jobs/7\n",
            "cgroup /cg/cpu cgroup rw,cpu 0 0\ncgroup /cg/m cgroup rw,memory 0 0\n",
            "jobs",
        ),
        ("0::/user.slice\n", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "user.slice"),
        ("0::/\n", "/dev/sda / ext4 rw 0 0\n", None),
    ],
)
def test_the_own_memory_group_is_found_in_both_versions(groups: str, mounts: str, expected: str | None) -> None:
    folders = {"jobs": Path("/cg/m/jobs/7"), "user.slice": Path("/sys/fs/cgroup/user.slice"), None: None}
    assert own_group(groups, mounts) == folders[expected]
