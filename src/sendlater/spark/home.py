"""A directory of links to PySpark's Spark, without what a start only loses time with."""

import os
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path

import pyspark

LEFT_OUT = ("spark-mllib_",)
"""Beginnings of the names of jars that a local Spark goes without. Machine learning gives each
session functions of its own, for which Scala looks at itself: a tenth of a start."""
SIGNED = ("janino-", "commons-compiler-")
"""Beginnings of the names of jars that are signed: Java checks each of their classes whenever it
reads it, and puts none into an archive."""
SIGNATURES = (".SF", ".RSA", ".DSA", ".EC")
"""Ends of the names of what makes a jar a signed one (JAR File Specification)."""


def spark_home(cache_dir: Path) -> Path:
    """The directory, made if it is not there; a moved PySpark gets another one.

    It has no zip of PySpark, so that workers import the installed package, which is compiled: each
    of a dozen processes would need 0.6 s of CPU to compile the zip's (docs/adr/0036).
    """
    real = Path(pyspark.__file__).parent
    parts = "\n".join((str(real), *LEFT_OUT, *SIGNED))
    home = cache_dir / f"spark-{pyspark.__version__}-{zlib.crc32(parts.encode()):08x}"
    if home.exists():
        return home
    # Renamed into place: another service must not find half of it.
    cache_dir.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=cache_dir))
    try:
        _fill(made, real)
        made.rename(home)
    except OSError:
        if not home.exists():  # else two services have started at once
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return home


def _fill(made: Path, real: Path) -> None:
    made.chmod(0o755)
    (made / "jars").mkdir()
    for name in ("bin", "sbin", "data", "licenses"):
        if (real / name).exists():
            (made / name).symlink_to(real / name)
    for jar in (real / "jars").iterdir():
        if jar.name.startswith(SIGNED):
            _unsign(jar, made / "jars" / jar.name)
        elif not jar.name.startswith(LEFT_OUT):
            (made / "jars" / jar.name).symlink_to(jar)


def _unsign(jar: Path, copy: Path) -> None:
    """Copy a jar without its signatures; its classes are the same."""
    with zipfile.ZipFile(jar) as signed, zipfile.ZipFile(copy, "w") as written:
        for entry in signed.infolist():
            if not (entry.filename.startswith("META-INF/") and entry.filename.endswith(SIGNATURES)):
                written.writestr(entry, signed.read(entry))
    with copy.open("rb") as file:
        os.fsync(file.fileno())  # a copy that was cut off would stop every start
