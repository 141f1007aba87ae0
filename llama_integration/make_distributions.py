"""Write the three distributions that LlamaIndex's repository holds integrations in, from the source beside this file.

    python llama_integration/make_distributions.py build/llama-index
    python -m build build/llama-index/llama-index-embeddings-care

Each folder has what ``llama-index-integrations`` asks for: ``pyproject.toml`` with ``[tool.llamahub]``, README,
licence, Makefile, tests. The ``care-qdrant`` wheel of this repository holds the same files: publish it without
``llama_integration/llama_index`` once these are published, and until then install either.
"""

import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BOUNDS = {line.split(">=")[0]: line for line in PROJECT["optional-dependencies"]["llama-index"]}


@dataclass(frozen=True, slots=True)
class Distribution:
    """One integration of LlamaIndex."""

    group: str
    """Name of LlamaIndex's namespace package."""
    classes: tuple[str, ...]
    base: tuple[str, str]
    """Module and name of the class that the first one extends."""
    needs: tuple[str, ...]
    """Other distributions, apart from llama-index-core and care-qdrant."""
    summary: str
    example: str

    @property
    def name(self) -> str:
        """Name of the distribution."""
        return f"llama-index-{self.group.replace('_', '-')}-care"

    @property
    def package(self) -> str:
        """Name of the import package."""
        return f"llama_index.{self.group}.care"

    def write(self, folder: Path) -> None:
        """Write the distribution into a new folder."""
        package = folder / self.package.replace(".", "/")
        source = ROOT / "llama_integration" / self.package.replace(".", "/")
        shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
        (folder / "tests").mkdir()
        (folder / "tests" / "__init__.py").touch()
        files = {"pyproject.toml": self.pyproject(), "README.md": self.readme(), "Makefile": MAKEFILE}
        files[f"tests/test_{self.group}_care.py"] = self.test()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")

    def pyproject(self) -> str:
        """Return the project file."""
        needs = [BOUNDS["llama-index-core"], f"care-qdrant>={PROJECT['version']}", *self.needs]
        lines = "\n".join(f'  "{need}",' for need in needs)
        authors = "\n".join(f'{name} = "care-qdrant"' for name in self.classes)
        return PYPROJECT.format(distribution=self, version=PROJECT["version"], needs=lines, authors=authors)

    def readme(self) -> str:
        """Return the README, which is the page on LlamaHub."""
        return f"# {self.summary}\n\n```bash\npip install {self.name}\n```\n\n```python\n{self.example}\n```\n"

    def test(self) -> str:
        """Return the test that every integration has: the class extends LlamaIndex's."""
        module, base = self.base
        first = self.classes[0]
        return (
            f"from {module} import {base}\nfrom {self.package} import {first}\n\n\n"
            f"def test_class() -> None:\n    assert {base} in {first}.__mro__\n"
        )


DISTRIBUTIONS = (
    Distribution(
        "embeddings",
        ("CareEmbedding", "CareNodeParser", "CareNodeText"),
        ("llama_index.core.base.embeddings.base", "BaseEmbedding"),
        (),
        "LlamaIndex embeddings: CARE, queries by a small encoder and documents by a large one",
        "from llama_index.embeddings.care import CareEmbedding\n\n"
        'embedding = CareEmbedding(documents=False)\nvector = embedding.get_query_embedding("糖尿病人能吃西瓜吗")',
    ),
    Distribution(
        "vector_stores",
        ("CareVectorStore",),
        ("llama_index.core.vector_stores.types", "BasePydanticVectorStore"),
        (f"llama-index-embeddings-care>={PROJECT['version']}",),
        "LlamaIndex vector store: Qdrant, searched only with the model that made the vectors",
        "from llama_index.embeddings.care import CareEmbedding\n"
        "from llama_index.vector_stores.care import CareVectorStore\nfrom qdrant_client import QdrantClient\n\n"
        'store = CareVectorStore("corpus", client=QdrantClient(path="qdrant"), embedding=CareEmbedding())',
    ),
    Distribution(
        "postprocessor",
        ("CareRerank",),
        ("llama_index.core.postprocessor.types", "BaseNodePostprocessor"),
        (f"llama-index-vector-stores-care>={PROJECT['version']}",),
        "LlamaIndex postprocessor: reranking by the document vectors that Qdrant holds",
        "from llama_index.postprocessor.care import CareRerank\n\n"
        "rerank = CareRerank(embedding=embedding, vector_store=store, top_n=5)",
    ),
)

MAKEFILE = """.PHONY: test lint
test:
\tpytest tests
lint:
\truff check .
"""

PYPROJECT = """[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "{distribution.name}"
version = "{version}"
description = "{distribution.summary}"
readme = "README.md"
requires-python = ">=3.11,<4.0"
license = "Apache-2.0"
license-files = ["LICENSE"]
authors = [{{ name = "The care-qdrant authors" }}]
dependencies = [
{needs}
]

[tool.hatch.build.targets.sdist]
include = ["llama_index/", "tests/"]

[tool.hatch.build.targets.wheel]
include = ["llama_index/"]

[tool.llamahub]
contains_example = false
import_path = "{distribution.package}"

[tool.llamahub.class_authors]
{authors}
"""


def main(output: Path) -> None:
    """Write all distributions below a folder."""
    for distribution in DISTRIBUTIONS:
        distribution.write(output / distribution.name)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python llama_integration/make_distributions.py OUTPUT_FOLDER")
    main(Path(sys.argv[1]))
