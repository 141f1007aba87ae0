from pathlib import Path

import pytest
from care_trainer import pipeline
from care_trainer.config import Run

from tests.trainer.tiny_run import tiny_run


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose base models are written: ``out/base/query`` and ``out/base/document``, last-token pooling."""
    run = tiny_run(tmp_path_factory.mktemp("base"))
    pipeline.run_stages(run)
    return run


@pytest.fixture(scope="session")
def query_folder(base: Run) -> Path:
    return Path(base.output) / "base" / "query"


@pytest.fixture(scope="session")
def document_folder(base: Run) -> Path:
    return Path(base.output) / "base" / "document"
