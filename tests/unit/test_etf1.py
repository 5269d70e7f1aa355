"""The environment of an etf1 scheduler, as settings."""

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from sendlater.clock import FixedClock
from sendlater.config import Settings
from sendlater.errors import BadSettings
from sendlater.etf1.environment import etf1_flags
from sendlater.etf1.events import Events
from sendlater.etf1.http import Etf1Server
from sendlater.etf1.mini import Mini
from sendlater.server.app import address_of
from sendlater.service.metrics import MetricsServer


def test_an_empty_environment_means_their_defaults():
    settings = Settings(**etf1_flags({}))
    assert settings.bootstrap_servers == "localhost:9092"
    assert settings.journals == ("schedules",)
    assert settings.history_topic == "history"
    assert settings.past == "deliver"


def test_their_names_are_understood(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        """
kafka:
  common:
    configuration: {security.protocol: SASL_PLAINTEXT, socket.keepalive.enable: true}
  consumer:
    configuration: {fetch.wait.max.ms: 20}
  producer:
    configuration: {partitioner: murmur2_random, security.protocol: SSL}
"""
    )
    settings = Settings(
        **etf1_flags(
            {
                "BOOTSTRAP_SERVERS": "a:1,b:2",
                "SCHEDULES_TOPICS": "one,two",
                "HISTORY_TOPIC": "done",
                "GROUP_ID": "group-7",
                "SCHEDULE_GRACE_INTERVAL": "30",
                "SINCE_DELTA": "-1",
                "SESSION_TIMEOUT": "nonsense",
                "CONFIGURATION_FILE": str(file),
            }
        )
    )
    assert settings.journals == ("one", "two")
    assert (settings.history_topic, settings.space) == ("done", "group-7")
    assert (settings.past, settings.past_grace_s) == ("reject", 30)
    assert settings.lease_ms == 6_000
    assert settings.kafka == {
        "security.protocol": "SSL",
        "socket.keepalive.enable": "true",
        "fetch.wait.max.ms": "20",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BOOTSTRAP_SERVERS", ""),
        ("HISTORY_TOPIC", ""),
        ("SINCE_DELTA", "1"),
        ("SINCE_DELTA", "yesterday"),
        ("CONFIGURATION_FILE", "/nowhere.yaml"),
    ],
)
def test_what_does_not_start_theirs_does_not_start_ours(name, value):
    with pytest.raises(BadSettings, match=name):
        etf1_flags({name: value})


@pytest.mark.parametrize("text", ["kafkas: {}", "kafka: {common: {config: {}}}", "kafka: [1]"])
def test_an_unknown_key_in_the_file_is_refused(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(BadSettings, match="CONFIGURATION_FILE"):
        etf1_flags({"CONFIGURATION_FILE": str(file)})


def test_their_log_settings_are_ours():
    settings = Settings(**etf1_flags({"LOG_LEVEL": "WARN", "GRAYLOG_SERVER": "logs:12201"}))
    assert (settings.log_level, settings.graylog) == ("warning", "logs:12201")


def test_who_can_be_reached_from_elsewhere_is_told_that_all_payloads_can_be_read():
    """etf1's interface knows no authentication, and by default listens on all interfaces."""

    def said(address):
        with capture_logs() as logs:
            environment = {"SERVER_ADDR": address, "METRICS_ADDR": "127.0.0.1:0"}
            Etf1Server(Settings(), Mini(), environment=environment).close()
        return [log["event"] for log in logs]

    (warning,) = said(":0")
    assert "can read all payloads" in warning
    assert said("127.0.0.1:0") == said("[::1]:0") == []


def test_an_address_without_a_host_means_the_same_in_every_setting_of_ours():
    """And what other machines can reach is written out."""
    server = MetricsServer(":0", CollectorRegistry())
    metrics_host = server._server.server_address[0]
    server.close()
    assert metrics_host == address_of(Settings(http_addr=":0"))[0] == "127.0.0.1"


def test_three_schedules_without_a_kafka_renew_themselves():
    clock = FixedClock(1_000_000)
    mini = Mini(clock)
    clock.advance(150_000)
    found = {s.id: (s.due_ms, s.record.key, s.record.value) for s in mini.all()}
    assert found == {
        b"schedule-1": (1_000_000 + 180_000, b"1", b"value 1"),
        b"schedule-2": (1_000_000 + 240_000, b"2", b"value 2"),
        b"schedule-3": (1_000_000 + 180_000, b"3", b"value 3"),
    }
    [family] = Events(mini).collect()
    assert {s.labels["type"]: s.value for s in family.samples} == {
        "kafka_scheduler_planned_schedule": 6,
        "kafka_scheduler_triggered_schedule": 3,
    }


def test_a_counter_goes_back_only_where_the_store_does():
    """What is rejected has still to be settled: it is no delivery, for a moment it is minus one."""
    counts = {"parked": 10, "settled": 9, "rejected": 2, "missed": 1, "tombstones": 0}
    events = Events(SimpleNamespace(counts=lambda: counts))

    def told():
        [family] = events.collect()
        found = {sample.labels["type"].split("_")[2]: sample.value for sample in family.samples}
        return found["planned"], found["triggered"]

    assert told() == (8, 6)
    counts |= {"rejected": 4, "missed": 2}
    assert told() == (8, 6)
    counts |= {"parked": 13, "settled": 13}
    assert told() == (9, 7)
    counts |= {"parked": 3, "settled": 2, "rejected": 0, "missed": 0}
    assert told() == (3, 2), "it was emptied"
