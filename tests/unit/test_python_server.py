"""What a local Spark starts as Python is a fork of one server: nobody notices the difference."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest
from servers import wait_until

from sendlater.spark import python_command, python_server
from sendlater.spark.python_server import SOCKET

TELLS = """
import os, sys
print(sys.argv[1:], os.environ.get("TOLD"), sys.stdin.read(), "redis" in sys.modules)
print("aside", file=sys.stderr)
sys.exit(int(os.environ.get("CODE", "0")))
"""


class Served:
    """A server, and the program that Spark would run as Python. `first` is run in the server, where
    it imports what forks need."""

    def __init__(self, directory: Path, modules: Path, first: str = "") -> None:
        self.directory, self.modules = directory, modules
        directory.mkdir()
        modules.mkdir(exist_ok=True)
        (modules / "tells.py").write_text(TELLS)
        (modules / "first.py").write_text(f"import redis\n{first}\n")
        self.process = subprocess.Popen(
            [sys.executable, "-m", python_server.__name__, str(directory), "first"],
            stdin=PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "YES", "PYTHONPATH": self.path},
        )
        wait_until(lambda: (directory / SOCKET).exists(), "the server listens")

    @property
    def path(self) -> str:
        """Where its programs find modules."""
        return os.pathsep.join([str(self.modules), os.environ.get("PYTHONPATH", "")])

    def begin(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """A program that runs until its standard input ends."""
        environment = {**os.environ, "PYTHONPATH": self.path}
        return subprocess.Popen(self.command(*arguments), stdin=PIPE, env=environment)

    def command(self, *arguments: str) -> list[str]:
        """The same as Spark's: a script without this package around it."""
        script = [sys.executable, "-I", "-S", python_command.__file__]
        return [*script, str(self.directory / SOCKET), *arguments]

    def run(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """What Python does with these arguments, to the end."""
        return subprocess.run(
            self.command(*arguments),
            input="read",
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": self.path, **environment},
        )

    def forks(self) -> list[psutil.Process]:
        """The programs that run in the server now."""
        return psutil.Process(self.process.pid).children()

    def end(self) -> None:
        """As the end of the JVM does."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path / "server", tmp_path / "modules")
    yield server
    server.end()


def test_a_module_has_its_arguments_streams_environment_and_exit_code(served: Served) -> None:
    ended = served.run("-m", "tells", "a", "b c", TOLD="here", CODE="7")

    assert ended.stdout == "['a', 'b c'] here read True\n", "and all is imported already"
    assert ended.stderr == "aside\n"
    assert ended.returncode == 7
    assert "None read" in served.run("-m", "tells").stdout, "one's environment is its own"


def test_errors_are_told_as_python_tells_them(served: Served) -> None:
    missing = served.run("-m", "no_such_module")
    assert "no_such_module" in missing.stderr
    assert missing.returncode == 1
    (served.modules / "ends.py").write_text("raise SystemExit('why')")
    told = served.run("-m", "ends")
    assert (told.stderr, told.returncode) == ("why\n", 1)


def test_what_is_no_module_is_run_by_python_itself(served: Served) -> None:
    assert served.run("-c", "print(6 * 7)").stdout == "42\n"


def test_a_fork_ends_with_the_program_that_asked_for_it(served: Served) -> None:
    (served.modules / "waits.py").write_text("import sys; sys.stdin.read()")
    program = served.begin("-m", "waits")
    wait_until(served.forks, "the fork runs")

    program.kill()
    wait_until(lambda: not served.forks(), "the fork has ended")

    assert program.wait(30) == -signal.SIGKILL
    assert "True" in served.run("-m", "tells").stdout, "and the server goes on"


def test_a_killed_fork_shows_as_in_a_shell(served: Served) -> None:
    (served.modules / "dies.py").write_text("import os, signal; os.kill(os.getpid(), 9)")
    assert served.run("-m", "dies").returncode == 128 + 9


def test_without_a_server_python_does_it_itself(served: Served) -> None:
    served.process.kill()
    served.process.wait(30)

    assert served.run("-m", "tells", CODE="3").returncode == 3


def test_a_fork_outlives_a_killed_server_and_its_program_waits_for_it(served: Served) -> None:
    (served.modules / "waits.py").write_text("import sys; sys.stdin.read()")
    program = served.begin("-m", "waits")
    fork = wait_until(served.forks, "the fork runs")[0]
    served.process.kill()
    served.process.wait(30)

    assert fork.is_running()
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.2)
    assert program.stdin is not None
    program.stdin.close()
    assert program.wait(30) == python_command.FAILED, "how it ended, only the server knows"
    wait_until(lambda: not fork.is_running(), "the fork has ended")


def test_what_a_server_cannot_do_python_does(tmp_path: Path) -> None:
    fails_once = """
import os
fork = os.fork
def fails():
    os.fork = fork
    raise BlockingIOError("no more processes")
os.fork = fails
"""
    served = Served(tmp_path / "server", tmp_path / "modules", fails_once)

    assert "False" in served.run("-m", "tells").stdout, "Python itself"
    assert "True" in served.run("-m", "tells").stdout, "the server"
    served.end()


def test_its_files_are_kept_from_those_who_remove_old_ones(tmp_path: Path) -> None:
    served = Served(
        tmp_path / "server", tmp_path / "modules", "import __main__; __main__.TOUCH_S = 0.02"
    )
    for path in (served.directory, served.directory / SOCKET):
        os.utime(path, (0, 0))
        wait_until(lambda path=path: path.stat().st_mtime > 0, "it has been touched")
    served.end()


def test_a_server_ends_with_its_standard_input_and_leaves_nothing(served: Served) -> None:
    served.end()

    assert served.process.returncode == 0
    assert not served.directory.exists()


def test_a_question_that_breaks_off_harms_nobody(served: Served) -> None:
    for sent in (b"", b"\0", b"\0\0\0\x09abc"):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(served.directory / SOCKET))
            asking.sendall(sent)
    assert "True" in served.run("-m", "tells").stdout, "the server does it, not Python itself"


def test_a_program_needs_a_place_where_programs_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = python_server.prepare()
    assert directory is not None
    ended = subprocess.run([directory / "python", "-c", "print(1)"], capture_output=True, text=True)
    assert ended.stdout == "1\n"
    shutil.rmtree(directory)

    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert python_server.prepare() is None
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert python_server.prepare() is None
    assert not list(deep.iterdir())
