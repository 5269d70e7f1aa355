"""What a service does while its store is not usable."""

import threading
from types import SimpleNamespace

import pytest

from sendlater.config import Settings
from sendlater.errors import StoreUnavailable
from sendlater.service.store_watch import StoreWatch


class Watched(StoreWatch):
    """A service that is to fill its store again, and cannot."""

    def __init__(self, nano_time, fails) -> None:
        self.settings = Settings(bootstrap_servers="unused:1")
        system = SimpleNamespace(nanoTime=nano_time)
        self._spark = SimpleNamespace(
            sparkContext=SimpleNamespace(_jvm=SimpleNamespace(System=system))
        )
        self._lost, self._fails = True, fails
        self._sidecars = SimpleNamespace(started=True)

    def _require_owner(self) -> None:
        pass

    def _beat(self) -> None:
        raise self._fails


def gone() -> int:
    raise ConnectionRefusedError("no JVM")


def test_it_goes_on_until_the_store_is_back() -> None:
    Watched(lambda: 1, StoreUnavailable("away"))._look_after_store(threading.Event())


def test_it_ends_when_its_jvm_is_gone() -> None:
    """No query would tell: all were ended before the store is filled again."""
    with pytest.raises(ConnectionRefusedError, match="no JVM"):
        Watched(gone, StoreUnavailable("no rebuild"))._look_after_store(threading.Event())
