"""A Java that maps an archive of classes says nothing when it does not fit."""

import os
import shlex
import subprocess
from pathlib import Path

import pyspark
import pytest

from sendlater.config import Settings
from sendlater.errors import MissingTool
from sendlater.local.class_archive import ClassArchive
from sendlater.local.java import find_java

[IVY] = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
HELP = ["org.apache.ivy.Main", "-?"]
FROM_ARCHIVE = "shared objects file (top)"


@pytest.fixture
def java() -> Path:
    return find_java(Settings().cache_dir).home


def run(java: Path, options: str, class_path: Path = IVY) -> str:
    """What a small program of Java's prints; options of our other tests are kept out."""
    environment = {k: v for k, v in os.environ.items() if k != "JAVA_TOOL_OPTIONS"}
    command = [java / "bin" / "java", *shlex.split(options), "-cp", class_path, *HELP]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.fixture
def archive(java, tmp_path) -> ClassArchive:
    directory = tmp_path / "it's a $directory"
    directory.mkdir()
    made = ClassArchive(directory, java_home=java, class_path=[IVY])
    assert made.options() == ""
    run(java, made.begin())
    assert made.options() == "", "it is in use before it is known to be whole"
    made.end(str(IVY))
    return made


def test_classes_come_from_the_archive(java, archive) -> None:
    assert FROM_ARCHIVE in run(java, f"{archive.options()} -Xlog:class+load")


def test_an_archive_that_does_not_fit_is_passed_over_in_silence(java, archive, tmp_path) -> None:
    copy = tmp_path / "other.jar"
    copy.write_bytes(IVY.read_bytes())
    assert run(java, archive.options(), copy) == run(java, "", copy)


@pytest.mark.parametrize("suffix", [".jsa", ".java.jsa"])
def test_a_damaged_archive_is_not_used(java, archive, suffix) -> None:
    file = archive.path.with_suffix(suffix)
    whole = file.read_bytes()
    file.unlink()  # Java has made it read-only
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + b"damaged" + whole[middle + 7 :])
    assert run(java, archive.options()) == run(java, "")
    file.write_bytes(whole[:middle])
    assert archive.options() == ""
    file.unlink()
    assert archive.options() == ""


def test_nothing_is_taken_into_use_that_java_does_not_take(java, tmp_path) -> None:
    archive = ClassArchive(tmp_path, java_home=java, class_path=[IVY])
    archive.begin()
    archive.path.write_bytes(b"as of a full disk")
    with pytest.raises(MissingTool):
        archive.end(str(IVY))
    assert archive.options() == ""


def test_each_java_and_class_path_has_its_own(java, tmp_path) -> None:
    def path(**other: object) -> Path:
        return ClassArchive(tmp_path, **{"java_home": java, "class_path": [IVY]} | other).path  # type: ignore[arg-type]

    assert len({path(), path(class_path=[]), path(java_home=tmp_path)}) == 3
    assert path() == path()


def test_a_java_that_cannot_is_named(tmp_path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho cannot dump >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(MissingTool, match=r"archives classes, got .*bin/java: cannot dump"):
        ClassArchive(tmp_path, java_home=tmp_path, class_path=[]).begin()
