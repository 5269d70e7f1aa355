"""A consumer that fails hands its record over, and it comes again: in Node and in Python, as the
page about it shows them, over a kill of the service."""

import json
import re
import shutil
import subprocess
import threading
import uuid
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from installation import now_ms
from ledger import Reader, create_topics
from servers import ServiceProcess, cli, tool, wait_until

pytestmark = pytest.mark.story

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "retry.md").read_text()
PAUSES_MS = (1_000, 2_000, 3_000)
COUNT = 60
HANDLE = """
export async function handle(message) {
  const { fails } = JSON.parse(message.value);
  const attempt = Number(message.headers["retry-attempt"] ?? 0);
  if (attempt < fails) throw new Error(`attempt ${attempt} of ${fails}`);
}
"""


def example(language, **places):
    """The page's consumer, with this test's places and pauses."""
    [code] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)
    for stands, here in {**places, "5s,30s,5m": "1s,2s,3s"}.items():
        assert stands in code, stands
        code = code.replace(stands, here)
    return code


def handle(message):
    fails = json.loads(message.value())["fails"]
    attempt = int(dict(message.headers() or ()).get("retry-attempt", b"0"))
    if attempt < fails:
        raise ValueError(f"attempt {attempt} of {fails}")


@pytest.fixture(scope="module")
def consumers(tmp_path_factory):
    """Node's Kafka client, as package-lock.json has it."""
    directory = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / "node" / name, directory)
    install = [tool("npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run(install, cwd=directory, check=True, capture_output=True, timeout=120)
    (directory / "handle.mjs").write_text(HANDLE)
    return directory


def test_every_record_is_handled_or_dead_after_its_attempts(
    kafka, redis_url, consumers, tmp_path_factory, monkeypatch
):
    name = uuid.uuid4().hex[:8]
    inbox, dead, bad, *orders = names = [
        f"{kind}-{name}" for kind in ("in", "dead", "bad", "node", "python")
    ]
    create_topics(kafka, *names)
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
    service = ServiceProcess(tmp_path_factory.mktemp("service"), **settings)

    places = {"127.0.0.1:9092": kafka, '"billing"': f'"billing-{name}"'}
    in_node = example("js", **places, **{'"orders"': f'"{orders[0]}"', '"schedules"': f'"{inbox}"'})
    (consumers / "consumer.mjs").write_text(in_node)
    places |= {"redis://127.0.0.1:6379/0": redis_url, '"billing"': f'"other-{name}"'}
    in_python = example("python", **places, **{'["orders"]': f'["{orders[1]}"]'})
    stop = threading.Event()
    knows = {"handle": handle, "running": lambda: not stop.is_set()}
    thread = threading.Thread(target=exec, args=(compile(in_python, "python", "exec"), knows))

    producer = Producer({"bootstrap.servers": kafka})
    with service.start(), Reader(kafka, *names) as reader:
        log = (consumers / "log").open("wb")
        node = subprocess.Popen(
            [tool("node"), "consumer.mjs"], cwd=consumers, stdout=log, stderr=log
        )
        thread.start()
        try:
            for n in range(COUNT):
                for topic in orders:
                    value = json.dumps({"n": n, "fails": n % 5, "topic": topic})
                    headers = [("sendlater-delay", "0"), ("scheduler-target-topic", topic)]
                    if n % 2:  # sendlater has delivered half of them
                        producer.produce(inbox, value, f"{topic}-{n}", headers=headers)
                    else:
                        producer.produce(topic, value, f"key-{n}")
            assert producer.flush(30) == 0

            def seen():
                return Counter(
                    (told["topic"], told["n"], m.topic() == dead)
                    for m in list(reader.messages)
                    if m.topic() in (*orders, dead)
                    for told in [json.loads(m.value())]
                )

            wait_until(lambda: len(seen()) > COUNT, "the first come", timeout_s=60)
            service.kill()
            service.start()
            # Fails n times: comes n times more, but only as often as there are pauses.
            wanted = {
                (topic, n, False): 1 + min(n % 5, len(PAUSES_MS))
                for topic in orders
                for n in range(COUNT)
            }
            gone = {(t, n, True) for t, n, _ in wanted if n % 5 > len(PAUSES_MS)}
            wait_until(
                lambda: (
                    seen().keys() >= wanted.keys() | gone
                    and all(seen()[one] >= count for one, count in wanted.items())
                ),
                "every attempt is made, and what cannot be handled is dead",
                timeout_s=120,
            )
        finally:
            node.terminate()
            stop.set()
            node.wait(30)
            thread.join(60)
        assert not [m for m in reader.messages if m.topic() == bad]
        assert seen().keys() == wanted.keys() | gone

        failed_ms = {}
        for message in reader.messages:
            told = dict(message.headers() or ())
            if message.topic() in orders and "retry-attempt" in told:
                attempt = int(told["retry-attempt"])
                first_s = failed_ms.setdefault(told["retry-of"], told["retry-original-timestamp"])
                assert told["retry-original-timestamp"] == first_s, "all attempts know the first"
                assert message.timestamp()[1] >= int(told["sendlater-due"]), "never early"
                assert int(told["sendlater-due"]) <= now_ms()
                assert 1 <= attempt <= len(PAUSES_MS)
                assert re.fullmatch(rb"(node|python)-.*/\d+/\d+", told["retry-origin"])
        letters = [dict(m.headers()) for m in reader.messages if m.topic() == dead]
        assert {one["event-type"].decode() for one in letters} == set(orders)
        assert {one["retry-attempt"] for one in letters if "sendlater-retry" in one} == {b"3"}
        assert all(b"attempt 3 of 4" in one["event-error"] for one in letters)
        shown = cli(service, "dead", "list").stdout.decode()
        assert "attempt 3 of 4" in shown
