"""A Kafka that wants a password, a certificate where openssl can make one, and rights."""

import json
import shutil
import subprocess

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from ledger import Reader, create_topics
from servers import ServiceProcess, cli, wait_until

from sendlater.local.kafka_server import KafkaServer
from sendlater.local.process import free_ports

pytestmark = pytest.mark.story

PASSWORD = 'p"ss\\word'
RIGHTS = {
    "schedules": ("READ", "DESCRIBE", "WRITE"),
    "rejected": ("WRITE", "DESCRIBE"),
    "allowed": ("WRITE", "DESCRIBE"),
    "seen": ("DESCRIBE",),
    "unseen": (),
}
"""What the service's user may do; it also sends, which takes the right to write to the inbox."""


def certificate(directory):
    """Broker properties and client settings of TLS; neither where there is no openssl."""
    if shutil.which("openssl") is None:
        return {}, {}
    key, cert, both = (directory / name for name in ("key.pem", "cert.pem", "both.pem"))
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", key, "-out", cert, "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    both.write_text(key.read_text() + cert.read_text())
    broker = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
    return broker, {"ssl.ca.location": str(cert)}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    """(bootstrap servers of everyone's listener, those of the secure one, its client settings)."""
    directory = tmp_path_factory.mktemp("secure-kafka")
    plain, secure, controller = free_ports(3)
    broker, client = certificate(directory)
    protocol = "SASL_SSL" if broker else "SASL_PLAINTEXT"
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    login = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_sendlater="{quoted}";'
    )
    extra = {
        "auto.create.topics.enable": "false",
        "listeners": f"OPEN://127.0.0.1:{plain},SECURE://127.0.0.1:{secure},"
        f"CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"OPEN://127.0.0.1:{plain},SECURE://127.0.0.1:{secure}",
        "listener.security.protocol.map": f"OPEN:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:{protocol}",
        "inter.broker.listener.name": "OPEN",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        # In a properties file a backslash stands for itself only when there are two.
        "listener.name.secure.plain.sasl.jaas.config": login.replace("\\", "\\\\"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    } | {f"listener.name.secure.{name}": value for name, value in broker.items()}
    settings = {
        "security.protocol": protocol,
        "sasl.mechanism": "PLAIN",
        "sasl.username": "sendlater",
        "sasl.password": PASSWORD,
        **client,
    }
    with KafkaServer(directory, port=plain, extra=extra) as server:
        yield server.bootstrap_servers, f"127.0.0.1:{secure}", settings


@pytest.fixture(scope="module")
def service(kafka, redis_url, tmp_path_factory):
    open_servers, secure_servers, settings = kafka
    create_topics(open_servers, *RIGHTS)
    acls = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:sendlater",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for topic, operations in RIGHTS.items()
        for operation in operations
    ]
    admin = AdminClient({"bootstrap.servers": open_servers})
    for future in admin.create_acls(acls).values():
        future.result(30)
    service = ServiceProcess(
        tmp_path_factory.mktemp("service"),
        bootstrap_servers=secure_servers,
        kafka=json.dumps(settings),
        redis=redis_url,
        space="secure",
        create_topics="false",
        inboxes='[{"topic": "schedules"}]',
    )
    with service:
        yield service.start()


def send(service, topic):
    done = cli(service, "send", topic, f"for {topic}", "--delay", "0")
    assert done.returncode == 0, done.stderr


def test_a_secured_kafka_is_read_and_written_with_one_set_of_settings(kafka, service):
    with Reader(kafka[0], "allowed") as reader:
        send(service, "allowed")
        wait_until(lambda: reader.messages, "the message arrives", timeout_s=60)

    assert reader.messages[0].value() == b"for allowed"


def test_what_may_not_be_written_is_rejected_and_hurts_nobody(kafka, service):
    with Reader(kafka[0], "rejected") as rejected, Reader(kafka[0], "allowed") as allowed:
        for topic in ("unseen", "seen", "allowed"):
            send(service, topic)
        wait_until(lambda: len(rejected.messages) == 2, "both are rejected", timeout_s=60)
        wait_until(lambda: len(allowed.messages) == 2, "the other arrives", timeout_s=60)

    told = {m.value(): dict(m.headers())["sendlater-rejected"] for m in rejected.messages}
    assert told == {b"for seen": b"not-authorised", b"for unseen": b"not-authorised"}


def test_the_password_is_nowhere_to_be_read(service):
    shown = cli(service, "config", "show").stdout.decode()

    assert "sasl.password" in shown
    assert "ss\\\\word" not in shown
    assert "ss\\word" not in service.said()


def test_a_wrong_password_is_told_in_words(kafka, service):
    wrong = json.dumps(kafka[2] | {"sasl.password": "wrong"})
    before = dict(service.environment)
    service.environment["SENDLATER_KAFKA"] = wrong
    done = cli(service, "send", "allowed", "x", "--delay", "0")
    service.environment = before

    assert done.returncode == 5
    assert b"Traceback" not in done.stderr
    assert b"does not answer" in done.stderr
