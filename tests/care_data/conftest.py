import shutil
from pathlib import Path

import pytest

from tests.care_data.clinic import write_collection


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample as LlamaIndex wrote it. Never write into it: copy it."""
    folder = tmp_path_factory.mktemp("clinic") / "qdrant"
    write_collection(folder)
    return folder


@pytest.fixture
def clinic(collection: Path, tmp_path: Path) -> Path:
    """A folder with that collection."""
    shutil.copytree(collection, tmp_path / "qdrant")
    return tmp_path
