"""An archive of Java's classes: a JVM that maps it neither reads, checks nor links them (JEP 350).

It fits one Java and one class path; a JVM that finds another one starts as if there were none.
Java 21 takes none of Spark's: a jar that stands twice on the class path, as Spark's launcher gives
it, is once in the archive's.
"""

import os
import shlex
import zlib
from collections.abc import Sequence
from pathlib import Path

from sendlater.errors import MissingTool
from sendlater.local.java import FIRST_COMPILER, run_java

HARMLESS = ("-XX:+VerifySharedSpaces", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""Options of Java: a damaged archive is not used (to see that takes 0.1 s), and nothing is said
about one that does not fit."""
IN_PLACE = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
"""Options of Java: the archive is mapped where it was made for, if there is room. Else each of its
pages is read, changed and kept in memory by every JVM (docs/adr/0031)."""
JAVA_TIMEOUT_S = 120.0
"""Java archives its own classes within some seconds."""


class ClassArchive:
    """The archive of one Java and one class path, in the directory of downloads.

    There are two files, as not every Java comes with an archive of its own classes, which that of
    all others builds on. A third one, written last, has their sizes: one that was cut off would end
    a JVM with SIGBUS.
    """

    def __init__(self, cache_dir: Path, *, java_home: Path, class_path: Sequence[Path]) -> None:
        """`class_path`: jars, and directories of jars."""
        self._java = java_home / "bin" / "java"
        parts = "\n".join(map(str, (java_home.resolve(), cache_dir.resolve(), *class_path)))
        self.path = cache_dir / f"classes-{zlib.crc32(parts.encode()):08x}.jsa"
        self._base = self.path.with_suffix(".java.jsa")
        self._sizes = self.path.with_suffix(".sizes")

    def options(self) -> str:
        """Options of Java that use the archive, quoted as in a shell, if there is a whole one."""
        whole = self._sizes.exists() and self._sizes.read_text() == self._measured()
        return shlex.join(self._use()) if whole else ""

    def begin(self) -> str:
        """Forget the archive; options of a Java that makes one of what it has loaded when it ends.

        Raises MissingTool if this Java cannot.
        """
        self._sizes.unlink(missing_ok=True)
        self._run("-Xshare:dump", f"-XX:SharedArchiveFile={self._base}")
        at_exit = (f"-XX:SharedArchiveFile={self._base}", f"-XX:ArchiveClassesAtExit={self.path}")
        return shlex.join((*at_exit, FIRST_COMPILER, *HARMLESS))

    def end(self, class_path: str) -> None:
        """Take the archive into use, when that Java, with this class path, has ended. Raises
        MissingTool if it made none, or one that Java does not take."""
        try:
            self._run(*self._use(), "-Xshare:on", "-cp", class_path, "-version")
        except MissingTool:
            for path in (self._base, self.path):
                path.unlink(missing_ok=True)
            raise
        for path in (self._base, self.path):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        self._sizes.write_text(self._measured())

    def _use(self) -> tuple[str, ...]:
        return (f"-XX:SharedArchiveFile={self._base}{os.pathsep}{self.path}", *HARMLESS, *IN_PLACE)

    def _measured(self) -> str:
        paths = (self._base, self.path)
        return " ".join(str(path.stat().st_size) if path.exists() else "none" for path in paths)

    def _run(self, *options: str) -> None:
        made = run_java(self._java, *options, timeout_s=JAVA_TIMEOUT_S)
        if made is None or made.returncode != 0:
            told = (made.stderr or made.stdout).strip().splitlines() if made else []
            last = told[-1] if told else "it failed without a word"
            raise MissingTool(f"expected a Java that archives classes, got {self._java}: {last}")
