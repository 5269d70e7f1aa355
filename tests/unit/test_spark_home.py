"""A local Spark's directory: PySpark's, without what a start only loses time with."""

import zipfile
from pathlib import Path

import pyspark
import pytest

from sendlater.spark import home as home_module
from sendlater.spark.home import LEFT_OUT, SIGNATURES, SIGNED, spark_home

THEIRS = Path(pyspark.__file__).parent


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A new one."""
    return spark_home(tmp_path_factory.mktemp("cache"))


def names(directory: Path) -> set[str]:
    return {one.name for one in directory.iterdir()}


def test_it_has_all_jars_but_those_that_are_left_out(home) -> None:
    left_out = names(THEIRS / "jars") - names(home / "jars")
    assert names(home / "jars") < names(THEIRS / "jars")
    assert len(left_out) == len(LEFT_OUT)
    assert all(name.startswith(LEFT_OUT) for name in left_out)
    assert (home / "bin" / "spark-submit").exists()
    assert not (home / "python").exists()


@pytest.mark.parametrize("beginning", SIGNED)
def test_a_signed_jar_is_the_same_without_its_signatures(home, beginning) -> None:
    [ours] = home.glob(f"jars/{beginning}*")
    with zipfile.ZipFile(ours) as copy, zipfile.ZipFile(THEIRS / "jars" / ours.name) as signed:
        left_out = set(signed.namelist()) - set(copy.namelist())
        assert left_out
        assert all(name.endswith(SIGNATURES) for name in left_out)
        assert all(copy.read(name) == signed.read(name) for name in copy.namelist())


def test_it_is_made_once(home) -> None:
    made = home.stat().st_mtime_ns
    assert spark_home(home.parent) == home
    assert home.stat().st_mtime_ns == made
    assert names(home.parent) == {home.name}


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path, monkeypatch) -> None:
    def full(jar: Path, copy: Path) -> None:
        raise OSError(28, f"{jar} does not fit as {copy}")

    monkeypatch.setattr(home_module, "_unsign", full)
    with pytest.raises(OSError, match="does not fit"):
        spark_home(tmp_path)
    assert names(tmp_path) == set()


def test_who_makes_it_at_the_same_time_takes_the_first(home, tmp_path, monkeypatch) -> None:
    """Another service has made it after this one saw that there is none."""
    ours = spark_home(tmp_path)
    seen = iter([False])
    monkeypatch.setattr(Path, "exists", lambda one: next(seen, True) if one == ours else True)
    assert spark_home(tmp_path) == ours
    assert next(seen, None) is None
    assert names(tmp_path) == {ours.name}
