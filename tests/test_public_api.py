"""The names that users import, each as they mean it."""

import subprocess
import sys

import care_qdrant


def test_every_public_name_is_there_and_no_module_hides_it() -> None:
    # A submodule of the same name would replace the function as soon as anybody imported it.
    code = (
        "import pkgutil, importlib, types, care_qdrant; "
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(care_qdrant.__path__, 'care_qdrant.')]; "
        "names = [n for n in care_qdrant.__all__ if isinstance(getattr(care_qdrant, n), types.ModuleType)]; "
        "assert not names, names"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_the_public_api_is_this() -> None:
    assert set(care_qdrant.__all__) == {
        "CareError",
        "CareModel",
        "Document",
        "Hit",
        "IngestReport",
        "IngestSettings",
        "Retriever",
        "__version__",
        "ingest",
        "open_client",
    }
