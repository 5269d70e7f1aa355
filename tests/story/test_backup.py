"""Backup and restore of Redis as docs/production.md describes them, step by step."""

import shutil
import subprocess

import pytest
import redis
from installation import Installation, now_ms
from servers import own_redis, tool, wait_until

from sendlater.local.process import LOOPBACK, free_ports
from sendlater.local.redis_server import find_redis

pytestmark = pytest.mark.story

HOUR_MS = 3_600_000


@pytest.fixture
def restored(tmp_path):
    """How to start a Redis from a backup; it is stopped with the test."""
    started = []

    def restore(backup):
        directory = tmp_path / "restored"
        directory.mkdir()
        shutil.copy(backup, directory / "dump.rdb")
        (port,) = free_ports(1)
        settings = ["--bind", LOOPBACK, "--port", str(port), "--appendonly", "no"]
        program = str(find_redis().path)
        started.append(subprocess.Popen([program, *settings, "--dir", str(directory)]))
        client = redis.Redis(host=LOOPBACK, port=port)
        wait_until(lambda: answers(client), "the restored Redis answers")
        client.config_set("appendonly", "yes")
        wait_until(lambda: written(client), "the append-only file is written")
        return f"redis://{LOOPBACK}:{port}/0"

    yield restore
    for process in started:
        process.terminate()
        process.wait(30)


def answers(client):
    try:
        return client.ping()
    except redis.ConnectionError:
        return False


def written(client):
    told = client.info("persistence")
    return not told["aof_rewrite_in_progress"] and told["aof_last_bgrewrite_status"] == "ok"


def test_a_restored_backup_goes_on_from_where_it_stands(kafka, restored, tmp_path):
    """What came after the backup is read from the inbox again; what was delivered comes again."""
    backup = tmp_path / "sendlater.rdb"
    later = ("sendlater-due-ms", str(now_ms() + HOUR_MS))

    def pending(key):
        return here.cli("get", key, codes=(0, 3))

    with own_redis(tmp_path) as first:
        here = Installation(kafka, first.url, tmp_path)
        with here.service, here.readers[here.target]:
            here.service.start()
            here.schedule(key=b"before", when=later)
            wait_until(lambda: pending("before"), "the first schedule is in Redis")
            dump = [tool("redis-cli"), "-u", first.url, "--rdb", str(backup)]
            subprocess.run(dump, check=True, capture_output=True, timeout=60)
            here.schedule(key=b"after", when=later)
            here.schedule(key=b"delivered")
            here.arrival(b"delivered")
            assert here.service.stop() == 0

            here.service.environment["SENDLATER_REDIS"] = restored(backup)
            here.service.start()
            assert pending("before")
            wait_until(lambda: pending("after"), "what came since is read again")
            twice = wait_until(
                lambda: here.arrivals(here.target, b"delivered")[1:], "it comes again"
            )
            assert dict(twice[0].headers())["sendlater-id"] == b"delivered"
