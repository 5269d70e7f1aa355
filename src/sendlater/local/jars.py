"""Downloads the jars that no Python package contains, once, with PySpark's Apache Ivy."""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import quoteattr

from sendlater.errors import MissingTool
from sendlater.local.java import find_java

JarSet = Literal["connector", "broker"]
"""`connector`: Spark's Kafka source and sink; `broker`: a whole Kafka. See ivy.xml."""

DOWNLOAD_TIMEOUT_S = 900
"""Longest time for the download of about 120 MB."""
LAST_LINES_COUNT = 12
"""Lines of Ivy's output in an error message."""


def cached(wanted: JarSet, *, cache_dir: Path) -> list[Path] | None:
    """The jars if they have been downloaded, else None. Only reads a directory."""
    found = sorted(_directory(wanted, cache_dir).glob("*.jar"))
    return found or None


def jars(
    wanted: JarSet, *, cache_dir: Path, mirror: str = "", java: Path | None = None
) -> list[Path]:
    """The jars of one set, downloaded to `cache_dir` by the first call.

    `mirror` is the URL of a Maven repository to use instead of Maven Central. `java` is the
    executable that runs Ivy, by default this machine's. Raises MissingTool.
    """
    if found := cached(wanted, cache_dir=cache_dir):
        return found
    final = _directory(wanted, cache_dir)
    final.parent.mkdir(parents=True, exist_ok=True)
    with (final.parent / "download.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases the lock of a dead process
        if found := cached(wanted, cache_dir=cache_dir):
            return found
        # Renamed when complete: a partial download is never mistaken for a complete one.
        with tempfile.TemporaryDirectory(dir=final.parent, prefix="download-") as scratch:
            executable = java or find_java(cache_dir).executable
            _download(wanted, Path(scratch), executable, cache_dir=cache_dir, mirror=mirror)
            shutil.rmtree(final, ignore_errors=True)
            (Path(scratch) / "jars").rename(final)
    return sorted(final.glob("*.jar"))


def _directory(wanted: JarSet, cache_dir: Path) -> Path:
    digest = hashlib.sha256(_ivy_xml().encode()).hexdigest()[:16]
    return cache_dir / "jars" / f"{wanted}-{digest}"


def _ivy_xml() -> str:
    return (resources.files(__package__) / "ivy.xml").read_text()


def _download(wanted: JarSet, scratch: Path, java: Path, *, cache_dir: Path, mirror: str) -> None:
    """Run Ivy, which puts the jars into `scratch`/jars."""
    root = f" root={quoteattr(mirror)}" if mirror else ""
    (scratch / "ivy.xml").write_text(_ivy_xml())
    (scratch / "ivysettings.xml").write_text(
        '<ivysettings><settings defaultResolver="maven"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true"{root}/></resolvers></ivysettings>'
    )
    command = [
        *(str(java), "-jar", str(_ivy_jar())),
        *("-settings", str(scratch / "ivysettings.xml"), "-ivy", str(scratch / "ivy.xml")),
        *("-cache", str(cache_dir / "ivy"), "-confs", wanted),
        *("-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]", "-types", "jar", "bundle"),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MissingTool(
            f"the {wanted} jars did not arrive within {DOWNLOAD_TIMEOUT_S} s"
        ) from error
    except OSError as error:
        raise MissingTool(f"cannot run {java}: {error}") from error
    if done.returncode != 0 or not any((scratch / "jars").glob("*.jar")):
        told = "\n".join(done.stdout.splitlines()[-LAST_LINES_COUNT:])
        raise MissingTool(
            f"cannot download the {wanted} jars (needed once). Without access to Maven Central, "
            f"set maven_mirror to a repository that you can reach. Output of Ivy:\n{told}"
        )


def _ivy_jar() -> Path:
    """PySpark's Ivy jar, found without importing PySpark."""
    package = find_spec("pyspark")
    if package is not None and package.origin:
        for jar in (Path(package.origin).parent / "jars").glob("ivy-*.jar"):
            return jar
    raise MissingTool("expected PySpark, which brings Ivy: pip install 'sendlater[pipeline]'")
