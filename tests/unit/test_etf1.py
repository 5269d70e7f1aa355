"""The environment of an etf1 scheduler, as settings."""

import pytest

from sendlater.config import Settings
from sendlater.errors import BadSettings
from sendlater.etf1 import etf1_flags


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
