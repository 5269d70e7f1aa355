"""Runs all loads on its own Redis, Kafka and service: `python -m sendlater.bench.all`.

Each load is a command that anyone can run; its result becomes a row of a table. `--write` writes
the tables to docs/measurements.md and README.md of the checkout in the working directory.
"""

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from sendlater.errors import Unavailable
from sendlater.local.kafka_server import KafkaServer
from sendlater.local.process import LOOPBACK, free_ports, last_lines, wait_for
from sendlater.local.redis_server import RedisServer, dotted, find_redis

LOADS = {
    "steady 5/s": "bench steady --rate 5 --seconds 60",
    "steady 2,000/s": "bench steady --rate 2000 --seconds 60",
    "steady 8,000/s": "bench steady --rate 8000 --seconds 30",
    "burst, 300,000 due in one instant": "bench burst --count 300000",
    "embedded default, 200/s": "demo --count 6000 --rate 200 --exit",
}
"""Rows of the first table, and the commands behind them."""
DOORS = {"REST, 1,500 single POSTs a second": "bench rest --rate 1500 --seconds 30"}
"""The same for the second table: loads on REST."""
PACKAGES = ("sendlater", "pyspark", "pyarrow", "confluent-kafka", "redis")
"""Packages whose versions are reported."""
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 900.0
MODULE = ("-m", "sendlater")
LATE = ("p50", "p90", "p99", "p999", "max")
HEAD = (
    *("load", "late ms p50", "p90", "p99", "p99.9", "max", "delivered/s", "intake ms p50", "p99"),
    *("sent/s", "intake/s", "bytes in Redis", "early", "doubled", "lost", "CPU s"),
)
DOORS_HEAD = ("load", "answer ms p50", "p90", "p99", "p99.9", "max", "answered/s", "CPU s")
README_HEAD = ("load", "p50", "p99", "p99.9", "max", "delivered/s")
README_CELLS = (0, 1, 3, 4, 5, 6)
"""Cells of the first table that the README shows."""


def main() -> None:
    """Run the requested loads, print the tables, and write them with `--write`."""
    asked = argparse.ArgumentParser(prog="sendlater.bench.all", description=__doc__)
    every = {**LOADS, **DOORS}
    asked.add_argument("--only", action="append", choices=list(every), help="one load; repeatable")
    asked.add_argument("--write", action="store_true", help="into docs/measurements.md, README.md")
    arguments = asked.parse_args()
    wanted = arguments.only or list(every)
    found = {}
    for embedded, doors in ((False, False), (True, False), (False, True)):
        names = [
            name
            for name in wanted
            if (name in DOORS, every[name].startswith("demo")) == (doors, embedded)
        ]
        if not names:
            continue
        with tempfile.TemporaryDirectory(prefix="sendlater-bench-") as made, ExitStack() as stack:
            environment = alone(Path(made))
            if not embedded:
                environment = stack.enter_context(_installation(Path(made), doors=doors))
            for name in names:
                result = _run(every[name], environment=environment)
                found[name] = row(name, result)
                sys.stderr.write(f"{json.dumps(result)}\n")
    for head, rows in ((HEAD, LOADS), (DOORS_HEAD, DOORS)):
        sys.stdout.write(table(head, [found[n] for n in rows if n in found]) + "\n\n")
    if arguments.write:
        write(Path.cwd(), found, machine=machine())


def row(name: str, result: Mapping[str, Any]) -> list[str]:
    """The cells of one load's result object, in the order of HEAD, or of DOORS_HEAD."""
    if name in DOORS:
        answers = [result["answer_ms"][percentile] for percentile in LATE]
        return [name, *map(number, (*answers, result["answered_per_s"], result["cpu_s"]))]
    intake = result.get("intake_ms", {})
    values = (
        *(result["late_ms"][percentile] for percentile in LATE),
        result.get("delivered_per_s"),
        *(intake.get("p50"), intake.get("p99")),
        *(result.get("sent_per_s"), result.get("intake_per_s")),
        result.get("redis_bytes_per_schedule"),
        *(result["early"], result["duplicated"], result["lost"]),
        result.get("cpu_s"),
    )
    return [name, *map(number, values)]


def table(head: tuple[str, ...], rows: Any) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(root: Path, found: Mapping[str, list[str]], *, machine: str) -> None:
    """Replace the rows measured now, and keep the others."""
    page = root / "docs" / "measurements.md"
    text = page.read_text()
    lines = (line.strip("|").split("|") for line in text.splitlines() if line.startswith("|"))
    cells = [[cell.strip() for cell in line] for line in lines]
    every = {row[0]: row for row in cells if row[0] in {**LOADS, **DOORS}} | dict(found)
    rows, doors = ([every[name] for name in names if name in every] for names in (LOADS, DOORS))
    commands = "\n".join(f"sendlater {command}" for command in (*LOADS.values(), *DOORS.values()))
    tables = f"{table(HEAD, rows)}\n\n{table(DOORS_HEAD, doors)}"
    page.write_text(between(text, "measured", f"{machine}\n\n```\n{commands}\n```\n\n{tables}"))
    short = [[cells[number] for number in README_CELLS] for cells in rows]
    readme = root / "README.md"
    readme.write_text(between(readme.read_text(), "numbers", table(README_HEAD, short)))


def between(text: str, mark: str, told: str) -> str:
    """`text` with the part between `<!-- mark -->` and `<!-- /mark -->` replaced."""
    pattern = rf"(<!-- {mark}[^>]*-->\n).*(<!-- /{mark} -->)"
    replaced, count = re.subn(pattern, lambda m: f"{m[1]}{told}\n{m[2]}", text, flags=re.DOTALL)
    assert count == 1, f"expected the marks of {mark!r} once, found them {count} times"
    return replaced


def number(value: float | None) -> str:
    """A number as text, with a fraction below 100."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"


def alone(scratch: Path) -> dict[str, str]:
    """An environment without settings, except its own data directory."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SENDLATER_")}
    kept = {
        n: os.environ[n]
        for n in ("SENDLATER_MAVEN_MIRROR", "SENDLATER_CACHE_DIR")
        if n in os.environ
    }
    return {**clean, **kept, "SENDLATER_DATA_DIR": str(scratch / "embedded")}


@contextmanager
def _installation(scratch: Path, *, doors: bool) -> Iterator[dict[str, str]]:
    """Run Redis, Kafka and a service, with or without REST; gives the environment for clients."""
    with RedisServer(scratch) as redis, KafkaServer(scratch, port=0) as kafka:
        environment = alone(scratch) | {
            "SENDLATER_DATA_DIR": str(scratch / "service"),
            "SENDLATER_REDIS": redis.url,
            "SENDLATER_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        }
        if doors:
            environment["SENDLATER_HTTP_ADDR"] = f"{LOOPBACK}:{free_ports(1)[0]}"
        with serving(environment, log=scratch / "service.log"):
            yield environment


@contextmanager
def serving(
    environment: Mapping[str, str], *, log: Path, python: str = sys.executable
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service until it is ready, and stop it at the end. Raises Unavailable."""
    with log.open("wb") as output:
        service = subprocess.Popen([python, *MODULE, "serve"], env=environment, stderr=output)
    try:
        wait_for(
            lambda: service.poll() is not None or b"is ready" in log.read_bytes(),
            timeout_s=START_TIMEOUT_S,
        )
        if b"is ready" not in log.read_bytes():
            raise Unavailable(f"the service did not start; the end of its log:\n{last_lines(log)}")
        yield service
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(STOP_TIMEOUT_S)


def _run(command: str, *, environment: Mapping[str, str] | None) -> dict[str, Any]:
    """The result object of one load. Raises Unavailable if the command prints none."""
    sys.stderr.write(f"sendlater {command}\n")
    done = subprocess.run(
        [sys.executable, *MODULE, *command.split(), "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        timeout=LOAD_TIMEOUT_S,
        check=False,
    )
    if not done.stdout.strip():
        raise Unavailable(f"sendlater {command} ended with {done.returncode} and no result")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def machine() -> str:
    """The machine and the versions, in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (named := re.search(r"model name\s*: (.+)", cpuinfo.read_text())):
        model = named[1]
    memory_gib = psutil.virtual_memory().total / 2**30
    machine = f"{model}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}"
    server = find_redis()
    store = f"{server.product} {dotted(server.version)}"
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"{machine}. {store}, Python {platform.python_version()}, {packages}."


if __name__ == "__main__":
    main()
