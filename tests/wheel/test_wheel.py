"""The wheel, installed into fresh environments and used there: `make wheel`."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from installation import Installation
from servers import wait_until

from sendlater import Record, Topics
from sendlater.config import load
from sendlater.server.process import HttpProcess

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"
UNIT = ("fake", "client_sending", "client_events", "client_brokers", "client_plan")
"""Unit tests of the client that need no extra."""
FOR_TESTS = ("pytest", "hypothesis", "psutil")
NEIGHBOURS = ("fastapi", "django", "celery[redis]", "confluent-kafka", "flask")
RECIPES = ROOT / "docs" / "recipes.md"


def uv(*arguments):
    done = subprocess.run([UV, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(python, *arguments, **more):
    """A program of an environment, in which nothing of this repository's is on the path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SENDLATER"))}
    done = subprocess.run(
        [python, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **{"env": environment, **more},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("dist")
    uv(
        "build",
        "-q",
        "--wheel",
        "--no-build-isolation",
        "-p",
        sys.executable,
        "-o",
        directory,
        ROOT,
    )
    (path,) = directory.glob("*.whl")
    return path


def fresh(directory):
    """Python of an environment in which nothing is installed."""
    uv("venv", "-q", "--python", sys.executable, directory / "env")
    return directory / "env" / "bin" / "python"


@pytest.fixture(scope="module")
def lowest(wheel, tmp_path_factory):
    """The client with the oldest versions that pyproject.toml allows."""
    python = fresh(tmp_path_factory.mktemp("lowest"))
    into = ("pip", "install", "-q", "--python", python)
    # As direct dependencies are only what this file names, not what the wheel does.
    uv(*into, "--resolution", "lowest-direct", "-r", ROOT / "pyproject.toml")
    uv(*into, "--no-deps", wheel)
    return python


def test_the_wheel_has_what_the_packages_have(wheel):
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "src"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert packed == {name.removeprefix("src/") for name in listed.stdout.splitlines()}


def test_the_lowest_versions_are_those_that_are_promised(lowest):
    told = json.loads(uv("pip", "list", "-q", "--format", "json", "--python", lowest))
    there = {one["name"]: one["version"] for one in told}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for one in project["dependencies"]:
        name, _, version = one.partition(",")[0].partition(">=")
        found = there[name.partition("[")[0]]
        assert found == version or found.startswith(f"{version}."), one


def test_the_client_works_with_the_lowest_versions(lowest, kafka, redis_url, tmp_path):
    here = Installation(kafka, redis_url, tmp_path)
    place = {
        "where": kafka,
        "redis_url": redis_url,
        "space": here.name,
        "inboxes": [{"topic": here.inbox}],
        "rejected_topic": here.rejected,
    }
    with here.service.start(), here.readers[here.target] as target:
        program = Path(__file__).with_name("program.py")
        told = json.loads(run(lowest, program, json.dumps(place), here.target, cwd=tmp_path))
        assert told == {
            "loaded": [],
            "installed": [],
            "found": '{"n": 1}',
            "cancelled": [100, "cancelled"],
            "handled": [1, 3, 4, 5],
        }
        wait_until(lambda: len(target.messages) == 4, "each has arrived once")


def test_unit_tests_of_the_client_pass_with_the_lowest_versions(lowest):
    uv("pip", "install", "-q", "--python", lowest, *FOR_TESTS)
    files = [ROOT / "tests" / "unit" / f"test_{name}.py" for name in UNIT]
    quiet = ("-q", "-c", os.devnull, "--rootdir", ROOT, "--noconftest", "-p", "no:cacheprovider")
    path = {"PYTHONPATH": str(ROOT / "tests"), "PYTHONDONTWRITEBYTECODE": "1"}
    run(lowest, "-m", "pytest", *quiet, *files, env={"PATH": os.environ["PATH"], **path})


@pytest.fixture(scope="module")
def beside(wheel, tmp_path_factory):
    """The client beside the newest of what it is used with."""
    python = fresh(tmp_path_factory.mktemp("beside"))
    uv("pip", "install", "-q", "--python", python, wheel, *NEIGHBOURS)
    return python


def test_it_lives_beside_the_newest_of_its_neighbours(beside):
    uv("pip", "check", "--python", beside)
    run(
        beside,
        "-c",
        "import fastapi, django, celery, flask, confluent_kafka, redis\n"
        "from sendlater import AsyncScheduler, Handlers, Scheduler, SchedulingProducer\n"
        "import sendlater.testing",
    )


def written(directory, *names):
    """Files of the page with recipes."""
    found = dict(
        re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", RECIPES.read_text(), re.M | re.S)
    )
    for name in names:
        (directory / name).write_text(found[name])


@pytest.mark.parametrize("framework", ["fastapi", "flask", "django", "celery"])
def test_a_recipe_passes_its_test(beside, tmp_path, framework):
    uv("pip", "install", "-q", "--python", beside, *FOR_TESTS)
    written(tmp_path, f"shop_{framework}.py", f"test_shop_{framework}.py")
    run(beside, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)


def test_the_recipe_of_a_sensor_passes_its_test(wheel, tmp_path, redis_url, space):
    python = fresh(tmp_path)
    uv("pip", "install", "-q", "--python", python, wheel, "dagster", *FOR_TESTS)
    written(tmp_path, "sensors.py", "test_sensors.py")
    with Topics(redis_url, space=space) as topics:
        topics.create("closings", partitions=2)
        for name, due in (("monday", b"1"), ("tuesday", b"2"), ("tuesday", b"2")):
            headers = [("sendlater-id", name.encode()), ("sendlater-due", due)]
            topics.produce(Record(topic="closings", value=b"", headers=headers))
    settings = load(redis=redis_url, space=space, http_addr="127.0.0.1:0", data_dir=tmp_path)
    served = HttpProcess(settings, redis_url=redis_url)
    try:
        run(
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "SENDLATER_URL": served.url},
        )
    finally:
        served.close()
