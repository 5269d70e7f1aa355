"""What `pip install sendlater` brings: little, and enough for what a client does."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sendlater.__main__ import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLIENT_ROOMS = ("dialects", "store", "topics", "brokers", "operations", "client", "testing")
"""Rooms of a client, and the ground, which every room has."""
HEAVY = ("pyspark", "fastapi", "rich", "pydantic", "redis", "confluent_kafka", "structlog")
"""What a program that imports the client need not load before it connects."""
MODULES = {"confluent-kafka": "confluent_kafka", "python-ulid": "ulid", "pyyaml": "yaml"}
"""Distributions whose modules have other names."""
OPTIONAL = {("pytest", "plugin.py"), ("opentelemetry", "tracing.py")}
"""Imported by one file only, which is loaded by who has them."""


def core():
    """The modules that the core dependencies bring."""
    names = (re.match(r"[\w-]+", one)[0] for one in PROJECT["dependencies"])
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


def test_a_clients_rooms_need_the_core_dependencies_alone():
    source = ROOT / "src" / "sendlater"
    paths = [*source.glob("*.py"), *(p for room in CLIENT_ROOMS for p in source.rglob(f"{room}/*"))]
    allowed = {*sys.stdlib_module_names, *core(), "sendlater"}
    wrong = []
    for path in paths:
        if path.suffix != ".py" or path.name == "doctor.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            found = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found = [node.module]
            for name in found:
                top = name.partition(".")[0]
                if top not in allowed and (top, path.name) not in OPTIONAL:
                    wrong.append(f"{path.relative_to(source)}: {top}")
    assert not wrong


@pytest.mark.parametrize(
    "name", ["Scheduler", "AsyncScheduler", "Handlers", "Backoff", "Task", "SendlaterError"]
)
def test_importing_a_part_of_the_client_loads_nothing_heavy(name):
    code = f"import sys; from sendlater import {name}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {module for module in HEAVY if module in loaded}


def test_pytest_loads_little_for_our_fixtures():
    code = "import sys, sendlater.testing.plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {module for module in HEAVY if module in done.stdout.split()}


def test_extras_bring_the_rest_and_each_other():
    extras = PROJECT["optional-dependencies"]
    assert {"cli", "server", "pipeline", "demo"} <= set(extras)
    assert "sendlater[cli,otel,pipeline,server]" in extras["demo"]
    pinned = [one for one in PROJECT["dependencies"] if "==" in one]
    assert not pinned, "a client lives beside others in one environment"


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("cyclopts", "list", "cli"),
        ("rich", "list", "cli"),
        ("pyspark", "serve", "pipeline"),
        ("numpy", "demo", "pipeline"),
        ("itsdangerous", "token me", "server"),
    ],
)
def test_the_command_line_says_what_it_lacks(missing, command, extra, tmp_path):
    code = f"import sys; sys.modules[{missing!r}] = None; import sendlater.__main__ as m; m.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *command.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    told = f"sendlater: {missing} is not installed: pip install 'sendlater[{extra}]'\n"
    assert done.stderr.endswith(told)
    assert "Traceback" not in done.stderr


def test_what_an_extra_brings_is_what_is_said():
    extras = PROJECT["optional-dependencies"]
    for name, brought in EXTRAS.items():
        names = {re.match(r"[\w-]+", one)[0] for one in extras[name]} - {"sendlater", "setuptools"}
        assert {MODULES.get(one, one) for one in names} == set(brought)
