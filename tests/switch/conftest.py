"""A switch reads back what it wrote after a second, which only the tests of two runs at once need."""

from collections.abc import Iterator

import pytest

from care_qdrant.switch import switch


@pytest.fixture(scope="package", autouse=True)
def unsettled() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(switch, "_SETTLE_SECONDS", 0.0)
        yield
