"""The task directory of the harness tests."""

from tests.bench.conftest import task_directory as task_directory
