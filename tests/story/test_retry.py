"""A consumer that fails hands its record over, and it comes again: in Node, Java, Go and Python, as
the page about it shows them, over a kill of the service.

RECORDS=5000 for the full size; RETRY_SEED repeats who fails how often.
"""

import json
import os
import random
import re
import shutil
import subprocess
import threading
import uuid
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from ledger import Reader, create_topics
from servers import ServiceProcess, cli, tool, wait_until

from sendlater.config import Settings
from sendlater.local.jars import jars

pytestmark = pytest.mark.story

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "retry.md").read_text()
PAUSES_MS = (1_000, 2_000, 3_000)
RECORDS = int(os.environ.get("RECORDS", "400"))
"""Over all languages together."""
TIMEOUT_S = 120 + RECORDS / 20
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(random.random()))
"""Tests have the same names in all processes of a run."""
SEED = int(os.environ.get("RETRY_SEED", random.Random(RUN).randrange(1_000_000)))
LANGUAGES = ("node", "java", "go", "python")


def example(language, **places):
    """The page's consumer, with this test's places and pauses."""
    [code] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)
    for stands, here in {**places, "5s,30s,5m": "1s,2s,3s"}.items():
        assert stands in code, stands
        code = code.replace(stands, here)
    return code


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def node(directory, places):
    """Node's Kafka client as package-lock.json has it."""
    (directory / "consumer.mjs").write_text(example("js", **places))
    run(
        *(tool("npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts"),
        cwd=directory,
    )
    return [tool("node"), "consumer.mjs"]


def java(directory, places):
    """Kafka's client is in the jars of the broker that the tests run."""
    (directory / "Consumer.java").write_text(example("java", **places))
    found = jars("broker", cache_dir=Settings().cache_dir)
    run(
        *(tool("javac"), "-cp", ":".join(map(str, found)), "Consumer.java", "Handler.java"),
        cwd=directory,
    )
    return [tool("java"), "-cp", ":".join([".", *map(str, found)]), "Consumer"]


def go(directory, places):
    """franz-go as go.sum has it."""
    (directory / "main.go").write_text(example("go", **places))
    run(tool("go"), "build", "-mod=readonly", "-o", "consumer", ".", cwd=directory)
    return ["./consumer"]


def handle(message):
    fails = json.loads(message.value())["fails"]
    attempt = int(dict(message.headers() or ()).get("retry-attempt", b"0"))
    if attempt < fails:
        raise ValueError(f"attempt {attempt} of {fails}")


@contextmanager
def consuming(language, directory, places):
    """Its consumer, until the block ends; what goes wrong is in the file `log`."""
    build = {"node": node, "java": java, "go": go}[language]
    shutil.copytree(HERE / language, directory)
    command = build(directory, places)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
        try:
            yield
            assert process.poll() is None, (directory / "log").read_text()[-2_000:]
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def consuming_in_python(places):
    stop = threading.Event()
    knows = {"handle": handle, "running": lambda: not stop.is_set()}
    code = compile(example("python", **places), "python", "exec")
    thread = threading.Thread(target=exec, args=(code, knows))
    thread.start()
    try:
        yield
        assert thread.is_alive()
    finally:
        stop.set()
        thread.join(60)


class Told:
    """What the topics say, by record: (language, number)."""

    def __init__(self, messages, *, orders, dead, inbox):
        self.messages, self.orders, self.dead_topic, self.inbox = messages, orders, dead, inbox
        self.read_count = 0
        self.came_ms = defaultdict(dict)
        """When each attempt came first, by its number; 0 is the record itself."""
        self.due_ms = defaultdict(lambda: defaultdict(set))
        self.asked_ms = defaultdict(lambda: defaultdict(set))
        """When each attempt was asked for by header."""
        self.dead = {}

    def read(self):
        """What has come since the last time, too."""
        fresh = self.messages[self.read_count :]
        self.read_count += len(fresh)
        for message in fresh:
            headers = dict(message.headers() or ())
            told = json.loads(message.value())
            one, ms = (told["language"], told["n"]), message.timestamp()[1]
            attempt = int(headers.get("retry-attempt", b"0"))
            if message.topic() in self.orders:
                self.came_ms[one][attempt] = min(ms, self.came_ms[one].get(attempt, ms))
                if attempt:
                    self.due_ms[one][attempt].add(int(headers["sendlater-due"]))
            elif message.topic() == self.dead_topic:
                self.dead[one] = headers
            elif message.topic() == self.inbox and "sendlater-retry" in headers:
                self.asked_ms[one][attempt + 1].add(ms)
        return self

    def check_times(self):
        """Each attempt comes its pause after the one before it has failed, never early."""
        for one, came in self.came_ms.items():
            for attempt in sorted(came)[1:]:
                pause_ms = PAUSES_MS[attempt - 1]
                dues = self.due_ms[one][attempt]
                assert came[attempt] >= min(dues), "never early"
                assert min(dues) >= came[attempt - 1] + pause_ms, (one, attempt)
                if one[0] != "python":  # its client counts from its own clock
                    assert dues <= {ms + pause_ms for ms in self.asked_ms[one][attempt]}


def fails_of(count):
    """How often each record fails: each attempt with the chance of one half."""
    chance = random.Random(SEED)
    return [next(n for n in range(10) if n == 9 or chance.random() < 0.5) for _ in range(count)]


@pytest.mark.parametrize("fails", [fails_of(RECORDS // len(LANGUAGES))], ids=[f"seed-{SEED}"])
def test_every_record_is_handled_or_dead_after_its_attempts(
    kafka, redis_url, tmp_path_factory, monkeypatch, fails
):
    name = uuid.uuid4().hex[:8]
    inbox, dead, bad = (f"{kind}-{name}" for kind in ("in", "dead", "bad"))
    orders = {language: f"{language}-{name}" for language in LANGUAGES}
    create_topics(kafka, inbox, dead, bad, *orders.values())
    settings = {
        "bootstrap_servers": kafka,
        "redis": redis_url,
        "space": name,
        "inboxes": json.dumps([{"topic": inbox}]),
        "rejected_topic": bad,
        "dead_topic": dead,
    }
    for setting, value in settings.items():
        monkeypatch.setenv(f"SENDLATER_{setting.upper()}", value)
    directory = tmp_path_factory.mktemp("retry")
    service = ServiceProcess(directory, **settings)
    producer = Producer({"bootstrap.servers": kafka})

    with ExitStack() as running:
        running.enter_context(service.start())
        reader = running.enter_context(Reader(kafka, inbox, dead, bad, *orders.values()))
        for language, topic in orders.items():
            places = {
                "127.0.0.1:9092": kafka,
                '"orders"': f'"{topic}"',
                '"billing"': f'"billing-{topic}"',
            }
            if language == "python":
                places["redis://127.0.0.1:6379/0"] = redis_url
                running.enter_context(consuming_in_python(places))
            else:
                places['"schedules"'] = f'"{inbox}"'
                consumer = consuming(language, directory / language, places)
                running.enter_context(consumer)

        for n, times in enumerate(fails):
            for language, topic in orders.items():
                value = json.dumps({"language": language, "n": n, "fails": times})
                headers = [("sendlater-delay", "0"), ("scheduler-target-topic", topic)]
                if n % 2:  # sendlater has delivered half of them
                    producer.produce(inbox, value, f"{topic}-{n}", headers=headers)
                else:
                    producer.produce(topic, value, f"key-{n}")
                producer.poll(0)
        assert producer.flush(30) == 0

        told = Told(reader.messages, orders=orders.values(), dead=dead, inbox=inbox)
        wanted = {
            (language, n): set(range(1 + min(times, len(PAUSES_MS))))
            for language in LANGUAGES
            for n, times in enumerate(fails)
        }
        gone = {(language, n) for language, n in wanted if fails[n] > len(PAUSES_MS)}
        # In the middle: each language's first retries are under way.
        wait_until(
            lambda: {one[0] for one, came in told.read().came_ms.items() if 1 in came} == {*orders},
            "every language has retried",
            timeout_s=TIMEOUT_S,
        )
        service.kill()
        service.start()
        wait_until(
            lambda: (
                told.read().dead.keys() >= gone
                and all(told.came_ms[one].keys() >= times for one, times in wanted.items())
            ),
            "every attempt is made, and what cannot be handled is dead",
            timeout_s=TIMEOUT_S,
        )
        shown = cli(service, "dead", "list").stdout.decode()

    assert not [m for m in reader.messages if m.topic() == bad]
    told.read()
    assert {one: set(came) for one, came in told.came_ms.items()} == wanted
    assert told.dead.keys() == gone
    told.check_times()
    check_headers(reader.messages, orders.values(), told.dead.values())
    assert "attempt 3 of " in shown


def check_headers(messages, orders, letters):
    """All attempts know the first; a dead letter knows its topic, its attempts and its error."""
    failed_s = defaultdict(lambda: defaultdict(set))
    for message in messages:
        told = dict(message.headers() or ())
        if message.topic() in orders and "retry-attempt" in told:
            attempts = failed_s[told["retry-of"]]
            attempts[int(told["retry-attempt"])].add(told["retry-original-timestamp"])
            assert re.fullmatch(rb"(node|java|go|python)-.*/\d+/\d+", told["retry-origin"])
            assert [name for name, _ in message.headers()].count("retry-origin") == 1
    # What a kill has doubled has failed first twice.
    assert all(s <= attempts[1] for attempts in failed_s.values() for s in attempts.values())
    assert {one["event-type"].decode() for one in letters} == set(orders)
    assert {one["retry-attempt"] for one in letters if "sendlater-retry" in one} == {b"3"}
    assert all(b"attempt 3 of " in one["event-error"] for one in letters)
