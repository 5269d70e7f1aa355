"""What the command line changes and reads, on topics on Redis."""

import json
import os
import subprocess

import pytest
from servers import COMMAND

from sendlater import Record, Scheduler, Topics


@pytest.fixture
def sendlater(redis_url, space, tmp_path):
    def run(*arguments, code=0, stdin=subprocess.DEVNULL):
        environment = {k: v for k, v in os.environ.items() if "SENDLATER" not in k}
        environment |= {
            "SENDLATER_REDIS": redis_url,
            "SENDLATER_SPACE": space,
            "SENDLATER_DATA_DIR": str(tmp_path),
        }
        done = subprocess.run(
            [COMMAND, *arguments],
            env=environment,
            stdin=stdin,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stderr.decode()
        return done.stdout.decode().splitlines()

    return run


@pytest.fixture
def scheduler(redis_url, space):
    with Scheduler(redis_url, space=space) as opened:
        yield opened


def test_schedules_are_moved(sendlater, scheduler):
    for name in ("a", "b"):
        scheduler.send_later("t", b"v", delay=3_600, id=name)
    before_ms = scheduler.get("a").due_ms
    told = sendlater("reschedule", "a", "nobody", "--delay", "2h", code=4)
    assert [line.split() for line in told] == [["a", "moved"], ["nobody", "unknown"]]
    assert scheduler.get("a").due_ms >= before_ms + 3_600_000
    assert sendlater("reschedule", "a", "--at", "2030-01-01T00:00:00Z", "--json") == [
        '{"a": "moved"}'
    ]
    assert scheduler.get("a").due_at.isoformat() == "2030-01-01T00:00:00+00:00"
    assert sendlater("deliver-now", "b")[0].split() == ["b", "moved"]
    assert scheduler.get("b").due_ms < before_ms
    sendlater("deliver-now", "nobody", code=3)
    sendlater("reschedule", "a", code=2)
    sendlater("deliver-now", code=2)


def test_what_matches_is_counted_before_it_is_cancelled(sendlater, scheduler):
    def left():
        return sorted(one.id for one in scheduler.iter())

    for name in ("a1", "a2", "b1"):
        scheduler.send_later("t", b"v", delay=3_600, id=name)
    assert sendlater("cancel", "--id-prefix", "a", "--dry-run") == ["2 matched, 0 cancelled"]
    sendlater("cancel", "--id-prefix", "a", code=2)  # nobody is there to say yes
    assert left() == ["a1", "a2", "b1"]
    assert sendlater("cancel", "--id-prefix", "a", "--yes") == ["2 matched, 2 cancelled"]
    assert left() == ["b1"]
    assert sendlater("cancel", "--topic", "other", "--yes", code=3)
    sendlater("cancel", "--id-prefix", "", "--yes", code=2)
    sendlater("cancel", "--all", "--topic", "t", "--yes", code=2)
    sendlater("cancel", "b1", "--all", code=2)
    sendlater("cancel", code=2)
    sendlater("cancel", "--all", "--due-to", "+2h", "--yes", code=2)
    assert left() == ["b1"]
    scheduler.send_later("t", b"v", delay=9, id="c", headers=[("CALLER_SERVICE", b"billing")])
    assert sendlater("cancel", "--caller", "billing", "-y") == ["1 matched, 1 cancelled"]
    assert json.loads(sendlater("cancel", "--all", "-y", "--json")[0])["cancelled"] == 1
    assert left() == []


@pytest.mark.parametrize(("said", "code"), [(b"n\n", 2), (b"\n", 2), (b"y\n", 0)])
def test_somebody_at_a_terminal_is_asked(sendlater, scheduler, said, code):
    scheduler.send_later("t", b"v", delay=3_600, id="a")
    hand, terminal = os.openpty()
    os.write(hand, said)
    sendlater("cancel", "--all", code=code, stdin=terminal)
    os.close(hand), os.close(terminal)
    assert (scheduler.get("a") is None) == (code == 0)


def test_records_are_shown_and_dead_ones_sent_again(sendlater, redis_url, space):
    headers = [
        ("context-who", b"me"),
        ("sendlater-id", b"old"),
        ("retry-attempt", b"3"),
        ("event-id", b"7"),
        ("event-type", b"remind"),
        ("event-error", b"ValueError: not today"),
    ]
    with Topics(redis_url, space=space) as topics:
        topics.create("dead-letters", 2)
        topics.create("remind", 1)
        for n in range(3):
            topics.produce(
                Record(topic="dead-letters", value=b"%d" % n, partition=n % 2, headers=headers)
            )
        topics.produce(Record(topic="dead-letters", value=b"\xff", partition=0))
        topics.produce(
            Record(topic="rejected", value=b"v", headers=[("sendlater-rejected", b"no-time")])
        )
        lines = [json.loads(line) for line in sendlater("dead", "list", "--json")]
        lines.sort(key=lambda line: line["value"])
        assert [line["value"] for line in lines] == ["0", "1", "2", "base64:/w=="]
        assert "ValueError: not today" in "\n".join(sendlater("dead", "list", "--limit", "2"))

        sendlater("dead", "redrive", lines[1]["place"], "0/1", code=4)
        (record,) = topics.read("remind", 0, after_position=0, count_max=10)
        assert (record.value, record.headers) == (
            b"1",
            [("context-who", b"me"), ("event-id", b"7")],
        )
        assert len(sendlater("dead", "redrive", "--all", code=4)) == 3, "one is no dead event"
        sendlater("dead", "redrive", code=2)
        sendlater("dead", "redrive", "0/1", code=3)

    assert "no-time" in "\n".join(sendlater("rejected", "list"))
    tailed = [json.loads(x) for x in sendlater("tail", "remind", "--from-start", "--count", "2")]
    assert [line["value"] for line in tailed] == ["1", "0"]


def test_a_letter_that_cannot_be_sent_hides_no_other(sendlater, redis_url, space):
    with Topics(redis_url, space=space) as topics:
        topics.create("dead-letters", 1)
        for target in (b"one", b"no topic!", b"two"):
            headers = [("event-type", target), ("event-error", b"ValueError: not today")]
            topics.produce(Record(topic="dead-letters", value=target, headers=headers))
        sent = [line.split()[1] for line in sendlater("dead", "redrive", "--all", code=4)]
        assert sent == ["one", "two"]
        assert [topics.partitions(name) > 0 for name in ("one", "two")] == [True, True]
