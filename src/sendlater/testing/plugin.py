"""Fixtures for pytest, found by it where sendlater is installed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # every pytest of the environment loads this file
    from sendlater.testing import Embedded, Fake


@pytest.fixture
def sendlater_fake() -> "Fake":
    """An installation in memory, of this test alone, with a clock to be moved."""
    from sendlater.testing import Fake

    return Fake()


@pytest.fixture(scope="session")
def sendlater_embedded(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Embedded]":
    """A real installation, started once for the session; needs sendlater[demo]."""
    from sendlater.testing import Embedded

    with Embedded(tmp_path_factory.mktemp("sendlater")) as embedded:
        yield embedded
