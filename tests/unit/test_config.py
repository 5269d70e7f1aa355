"""Settings: where they come from, who wins, and what is refused in words."""

import json
import os

import pytest
from confluent_kafka import IsolationLevel

from sendlater.brokers.client_options import client_options, isolation
from sendlater.brokers.kafka_options import java_options, reader_options, spark_options
from sendlater.config import Inbox, Settings, load
from sendlater.config_environment import ENV_PREFIX, injected_by_kubernetes
from sendlater.config_secrets import HIDDEN
from sendlater.config_tables import Limit
from sendlater.errors import BadSettings
from sendlater.store.waiting import Rate, rates_of, rates_text


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No variable and no file of the machine that runs the tests."""
    for name in [name for name in os.environ if name.upper().startswith("SENDLATER_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def file(tmp_path, monkeypatch, text):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    monkeypatch.setenv("SENDLATER_CONFIG", str(path))


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path, monkeypatch):
    file(tmp_path, monkeypatch, 'space = "file"\nshards = 3\nlanes = 3\n')
    monkeypatch.setenv("SENDLATER_SPACE", "environment")
    monkeypatch.setenv("SENDLATER_SHARDS", "4")

    settings = load(space="flag", shards=None, bootstrap_servers=None)

    assert (settings.space, settings.shards, settings.lanes) == ("flag", 4, 3)
    assert settings.window_ms == Settings.model_fields["window_ms"].default


def test_a_file_in_the_working_directory_is_read_without_being_named(tmp_path):
    (tmp_path / "sendlater.toml").write_text('space = "here"')

    assert load().space == "here"


def test_several_inboxes_come_from_a_file_or_as_json_from_the_environment(tmp_path, monkeypatch):
    expected = (Inbox(topic="a", dialect="envelope"), Inbox(topic="b"))
    file(
        tmp_path,
        monkeypatch,
        '[[inboxes]]\ntopic = "a"\ndialect = "envelope"\n[[inboxes]]\ntopic = "b"\n',
    )
    assert load().inboxes == expected

    monkeypatch.delenv("SENDLATER_CONFIG")
    monkeypatch.setenv(
        "SENDLATER_INBOXES", '[{"topic": "a", "dialect": "envelope"}, {"topic": "b"}]'
    )
    assert load().inboxes == expected


def test_tables_can_be_set_name_by_name_in_the_environment(tmp_path, monkeypatch):
    file(tmp_path, monkeypatch, '[kafka]\n"client.id" = "file"\n"security.protocol" = "SSL"\n')
    monkeypatch.setenv("SENDLATER_KAFKA__client.id", "environment")

    assert load().kafka == {"client.id": "environment", "security.protocol": "SSL"}


def secrets(tmp_path, monkeypatch, **files):
    """A directory of secrets as Kubernetes mounts it: links to a version in a hidden directory."""
    version = tmp_path / "secrets" / "..2030"
    version.mkdir(parents=True)
    (version.parent / "..data").symlink_to(version.name)
    for name, content in files.items():
        (version / name).write_text(content)
        (version.parent / name).symlink_to(f"..data/{name}")
    monkeypatch.setenv("SENDLATER_SECRETS", str(version.parent))


def test_secrets_come_from_files_of_their_own(tmp_path, monkeypatch):
    """They win over the settings file, into whose tables they are merged; the environment wins."""
    file(tmp_path, monkeypatch, 'redis = "redis://file"\n[kafka]\n"client.id" = "file"\n')
    secrets(tmp_path, monkeypatch, redis="redis://secret\n", kafka='{"sasl.password": "p"}')

    assert load().redis.get_secret_value() == "redis://secret"
    assert load().kafka == {"client.id": "file", "sasl.password": "p"}

    monkeypatch.setenv("SENDLATER_REDIS", "redis://environment")
    assert load().redis.get_secret_value() == "redis://environment"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"redis-url": "redis://x"}, "unknown setting: .*secrets/redis-url, expected files"),
        ({"kafka": "{hunter2"}, '"kafka".*; expected JSON'),
    ],
)
def test_what_is_wrong_in_a_secret_is_told_without_it(tmp_path, monkeypatch, files, told):
    secrets(tmp_path, monkeypatch, **files)

    with pytest.raises(BadSettings, match=told) as error:
        load()
    assert "hunter2" not in str(error.value)


def test_a_directory_of_secrets_that_is_named_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv("SENDLATER_SECRETS", str(tmp_path / "nowhere"))

    with pytest.raises(BadSettings, match=r"secrets in .*nowhere: .*No such file"):
        load()


def test_a_secret_that_cannot_be_read_is_told_not_passed_over(tmp_path, monkeypatch):
    secrets(tmp_path, monkeypatch)
    (tmp_path / "secrets" / "redis").mkdir()

    with pytest.raises(BadSettings, match=r"cannot read the secrets .*secrets/redis"):
        load()


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("SENDLATER_INBOX", "x", "SENDLATER_INBOX, expected inboxes"),
        ("SENDLATER_SPACE__X", "x", "SENDLATER_SPACE__X, expected"),
        ("SENDLATER_INBOXES", "[{", "expected JSON"),
        ("SENDLATER_INBOXES", "3", "inboxes: Input should be a list, got '3'"),
        ("SENDLATER_INBOXES", "[]", "expected at least one topic"),
        ("SENDLATER_INBOXES", '[{"topic": "a"}, {"topic": "a"}]', "expected each topic once"),
        ("SENDLATER_INBOXES", '[{"topic": "rejected"}]', "'rejected' is an inbox too"),
        ("SENDLATER_INBOXES", '[{"topic": "a", "dialekt": "x"}]', "dialekt, expected dialect"),
        ("SENDLATER_INBOXES", '[{"topic": "a", "dialect": "x"}]', "'headers'.*'envelope'.*'x'"),
        *(
            ("SENDLATER_INBOXES", f'[{{"topic": "a", "added_headers": {wrong}}}]', told)
            for wrong, told in {
                '"none"': "inboxes.*'all' or 'few', got 'none'",
                '"few", "dialect": "envelope"': "'few' needs dialect 'headers'.*got.*'envelope'",
                '"few", "journal": true': "needs .*no journal .*got.*'journal': True",
                '"few", "copy_to": "b"': "needs .*no copy_to.*got.*'copy_to': 'b'",
            }.items()
        ),
        ("SENDLATER_SHARDS", "none", "shards: .*integer.*'none'"),
        ("SENDLATER_SHARDS", "0", "shards: .*greater than 0.*'0'"),
        ("SENDLATER_SPACE", "a b", "space: .*pattern.*'a b'"),
    ],
)
def test_what_is_wrong_in_the_environment_is_told(monkeypatch, variable, value, told):
    monkeypatch.setenv(variable, value)

    with pytest.raises(BadSettings, match=told):
        load()


def of_a_service(name, address, *ports):
    """What Kubernetes puts into every pod beside a Service; a port is number, protocol, name."""
    host = f"[{address}]" if ":" in address else address
    upper = name.upper().replace("-", "_")
    number, protocol, _ = ports[0]
    found = {
        f"{upper}_SERVICE_HOST": address,
        f"{upper}_SERVICE_PORT": number,
        f"{upper}_PORT": f"{protocol}://{host}:{number}",
    }
    for number, protocol, port_name in ports:
        if port_name:
            found[f"{upper}_SERVICE_PORT_{port_name.upper().replace('-', '_')}"] = number
        link = f"{upper}_PORT_{number}_{protocol.upper()}"
        found[link] = f"{protocol}://{host}:{number}"
        found |= {f"{link}_PROTO": protocol, f"{link}_PORT": number, f"{link}_ADDR": address}
    return found


@pytest.mark.parametrize(
    "variables",
    [
        of_a_service("sendlater", "10.0.0.11", ("8080", "tcp", "")),
        of_a_service("sendlater", "fd00::1", ("8080", "tcp", "http"), ("9100", "tcp", "metrics")),
        of_a_service("sendlater-redis-0", "10.0.0.12", ("6379", "tcp", "tls-redis")),
        of_a_service("sendlater-kafka", "10.0.0.13", ("9092", "sctp", ""), ("53", "udp", "dns")),
    ],
)
def test_what_kubernetes_tells_about_a_service_of_our_name_is_passed_over(monkeypatch, variables):
    """Else nothing starts in a namespace with such a Service."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert load() == Settings()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SENDLATER_PORT", "8080"),
        ("SENDLATER_HTTP_PORT", "8080"),
        ("SENDLATER_SERVICE_HOST", "redis"),
        ("SENDLATER_SERVICE_PORTS", "8080"),
        ("SENDLATER_PORT_HTTP_TCP", "tcp://10.0.0.11:8080"),
        ("SENDLATER_PORT_8080_TCP_PROTO", "http"),
        ("SENDLATER_KAFKA_SERVICE_ADDR", "10.0.0.11"),
        ("SENDLATER_SPACE__X_SERVICE_HOST", "10.0.0.11"),
        ("sendlater_service_host", "10.0.0.11"),
    ],
)
def test_what_only_looks_like_a_service_is_refused(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)

    with pytest.raises(BadSettings, match=f"unknown setting in the environment: {variable},"):
        load()


def test_no_setting_can_be_taken_for_a_service():
    values = ("10.0.0.11", "8080", "tcp", "tcp://10.0.0.11:8080")
    names = [f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields]

    assert not [n for n in names for value in values if injected_by_kubernetes(n, value)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("shard = 2", "unknown setting: shard, expected shards"),
        ('space = "x', "cannot read the settings file .*settings.toml"),
        ("zzz = 2", "unknown setting: zzz, expected bootstrap_servers or"),
        ("[limits.sms]\nburst = 1", "limits.sms.per_second: Field required"),
        ("[limits.sms]\nper_secnd = 5", "unknown setting: limits.sms.per_secnd, expected per_se"),
        ("[limits.sms]\nper_second = 0", "limits.sms.per_second: .*0.001, got '0'"),
        ("[limits.sms]\nper_second = 1\nweights = {a = 0}", "limits.sms.weights.a: .*0.001"),
        ("[limits.'a:b']\nper_second = 1", "limits.a:b.*pattern"),
    ],
)
def test_what_is_wrong_in_the_file_is_told(tmp_path, monkeypatch, text, told):
    file(tmp_path, monkeypatch, text)

    with pytest.raises(BadSettings, match=told):
        load()


def test_limits_come_from_a_file_or_from_the_environment(tmp_path, monkeypatch):
    text = "[limits.sms]\nper_second = 50\nburst = 100\n[limits.sms.weights]\na = 3"
    file(tmp_path, monkeypatch, text)
    from_file = load().limits
    assert from_file == {"sms": Limit(per_second=50, burst=100, weights={"a": 3})}
    assert rates_of(rates_text(from_file)) == [Rate("sms", 20.0, 100, {"a": 3})]

    monkeypatch.delenv("SENDLATER_CONFIG")
    monkeypatch.setenv("SENDLATER_LIMITS", '{"sms": {"per_second": 0.5}}')
    assert rates_of(rates_text(load().limits)) == [Rate("sms", 2_000.0, 1, {})]
    assert (rates_text({}), rates_of("")) == ("", [])


def test_buckets_refuse_limits_at_the_start():
    with pytest.raises(BadSettings, match=r"limits: what waits .* in Redis.*got \['sms'\]"):
        load(
            pending="buckets",
            bootstrap_servers="kafka:9092",
            limits={"sms": {"per_second": 1}},
        )


def test_a_file_that_is_named_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv("SENDLATER_CONFIG", str(tmp_path / "nowhere.toml"))

    with pytest.raises(BadSettings, match=r"nowhere\.toml: No such file"):
        load()


SECURE = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanisms": "SCRAM-SHA-512",
    "sasl.username": "billing",
    "sasl.password": 'p"w\\d',
    "ssl.ca.location": "/certs/ca.pem",
    "ssl.keystore.location": "/certs/client.p12",
    "ssl.key.password": "key-secret",
    "linger.ms": "7",
}


def test_kafka_settings_reach_both_client_families():
    """Python's client takes them as they are; Java's has other names for the same."""
    settings = Settings(
        bootstrap_servers="kafka:9092", kafka=SECURE, kafka_java={"client.dns.lookup": "x"}
    )

    assert client_options(settings) == {"bootstrap.servers": "kafka:9092", **SECURE}
    assert spark_options(settings) == {
        "kafka.bootstrap.servers": "kafka:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="billing" password="p\\"w\\\\d";'
        ),
        "kafka.ssl.truststore.location": "/certs/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.keystore.location": "/certs/client.p12",
        "kafka.ssl.keystore.type": "PKCS12",
        "kafka.ssl.key.password": "key-secret",
        "kafka.client.dns.lookup": "x",
    }


def test_java_settings_of_ones_own_win():
    settings = Settings(
        kafka={"security.protocol": "SASL_PLAINTEXT"}, kafka_java={"security.protocol": "SSL"}
    )

    assert java_options(settings) == {"security.protocol": "SSL"}


def test_what_a_transaction_wrote_is_read_once_it_is_committed_unless_told_otherwise():
    """For both families; Java's own setting wins, as everywhere."""
    name, uncommitted = "isolation.level", {"isolation.level": "read_uncommitted"}
    level = f"kafka.{name}"
    assert reader_options(Settings())[level] == "read_committed"
    assert reader_options(Settings(kafka=uncommitted))[level] == "read_uncommitted"
    assert reader_options(Settings(kafka_java=uncommitted))[level] == "read_uncommitted"
    both = Settings(kafka=uncommitted, kafka_java={name: "read_committed"})
    assert reader_options(both)[level] == "read_committed"
    assert level not in spark_options(Settings())
    assert isolation({}) is IsolationLevel.READ_COMMITTED
    assert isolation(client_options(both)) is IsolationLevel.READ_UNCOMMITTED


def test_a_certificate_and_its_key_in_two_files_become_texts_for_java(tmp_path):
    (tmp_path / "cert.pem").write_text("CERTIFICATE")
    (tmp_path / "key.pem").write_text("KEY")
    settings = Settings(
        kafka={
            "ssl.certificate.location": str(tmp_path / "cert.pem"),
            "ssl.key.location": str(tmp_path / "key.pem"),
            "ssl.ca.pem": "CA",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )

    assert java_options(settings) == {
        "ssl.keystore.certificate.chain": "CERTIFICATE",
        "ssl.keystore.key": "KEY",
        "ssl.keystore.type": "PEM",
        "ssl.truststore.certificates": "CA",
        "ssl.truststore.type": "PEM",
        "ssl.endpoint.identification.algorithm": "",
    }


def test_a_certificate_that_cannot_be_read_is_told(tmp_path):
    settings = Settings(kafka={"ssl.key.location": str(tmp_path / "nowhere")})

    with pytest.raises(BadSettings, match=r"ssl\.key\.location: cannot read .*nowhere"):
        java_options(settings)


def test_no_security_setting_is_dropped_in_silence():
    given = {"enable.ssl.certificate.verification": "false", "ssl.crl.location": "/crl.pem"}

    with pytest.raises(BadSettings, match=r"ssl\.crl\.location has no translation.*kafka_java"):
        java_options(Settings(kafka=given))

    own = {"ssl.truststore.type": "JKS"}
    assert java_options(Settings(kafka=given, kafka_java=own)) == own


def test_a_login_that_cannot_be_translated_is_refused_in_words():
    settings = Settings(kafka={"sasl.username": "x", "sasl.mechanism": "OAUTHBEARER"})

    with pytest.raises(BadSettings, match=r"PLAIN or .*'OAUTHBEARER'; set kafka_java"):
        java_options(settings)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@host:6379/0",
        "rediss://user:hunter2@host/0",
        "redis://host/0?password=hunter2&db=1",
        "redis+cluster://user:hunter2@host:7000",
        "redis://:hunter2@host,redis://u:hunter2@other:6380/0",
    ],
)
def test_secrets_are_hidden_where_settings_are_shown(url):
    settings = Settings(
        redis=url,
        kafka={**SECURE, "sasl.password": "hunter2", "ssl.key.password": "hunter2"},
        kafka_java={"sasl.jaas.config": 'password="hunter2";', "ssl.keystore.key": "hunter2"},
        spark={"spark.hadoop.fs.s3a.secret.key": "hunter2"},
        maven_mirror="https://user:hunter2@mirror/maven",
    )

    shown = settings.shown()

    assert "hunter2" not in json.dumps(shown)
    assert "hunter2" not in repr(settings.redis)
    assert "host" in shown["redis"], "what is no secret stays readable"
    assert shown["kafka"]["sasl.password"] == HIDDEN
    assert shown["kafka"]["sasl.username"] == "billing"


def test_redis_may_be_a_list_in_the_file_or_separated_by_commas(monkeypatch, tmp_path):
    (tmp_path / "sendlater.toml").write_text('redis = ["redis://:a,b@one/0", "redis://two/0"]')
    monkeypatch.chdir(tmp_path)
    in_file = load().redis.get_secret_value()
    monkeypatch.setenv("SENDLATER_REDIS", "redis://:a,b@one/0, redis://two/0")

    assert in_file == load().redis.get_secret_value() == "redis://:a,b@one/0,redis://two/0"


@pytest.mark.parametrize(
    ("urls", "told"),
    [
        (["redis://:hunter2@a", "redis://:hunter2@a"], "each Redis server once"),
        (["redis://:hunter2@a", "redis+cluster://:hunter2@b"], "one Redis Cluster, or several"),
    ],
)
def test_a_list_that_cannot_be_is_refused_without_its_passwords(urls, told):
    with pytest.raises(BadSettings, match=f"^redis: expected {told}") as refused:
        load(redis=urls)

    assert "hunter2" not in str(refused.value)


def test_an_error_never_quotes_a_secret(monkeypatch):
    monkeypatch.setenv("SENDLATER_KAFKA", '{"sasl.password": {"a": "hunter2"}}')

    with pytest.raises(BadSettings) as told:
        load()

    assert "hunter2" not in str(told.value)
    assert told.value.__cause__ is None
