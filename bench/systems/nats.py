"""NATS: message schedules of JetStream, one server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers import GO, NATS_SERVER, go_versions, install_go
from bench.system import Servers, System, launched
from sendlater.local.process import LOOPBACK, free_ports

READY = "Server is ready"
CONFIGURATION = """\
listen: "{loopback}:{port}"
jetstream {{ store_dir: "{store}" }}
"""


@contextmanager
def _servers(directory: Path) -> Iterator[Servers]:
    port = free_ports(1)[0]
    settings, log = directory / "nats.conf", directory / f"nats-{port}.log"
    settings.write_text(
        CONFIGURATION.format(loopback=LOOPBACK, port=port, store=directory / "jetstream")
    )
    command = [str(GO / "nats-server"), "-c", str(settings)]
    with launched(directory, command, log=log, ready=READY, name="nats-server") as pid:
        yield Servers({"BENCH_URL": f"nats://{LOOPBACK}:{port}"}, {"broker": pid})


SYSTEM = System(
    name="NATS",
    settings={
        "stream storage": "file, so that schedules survive a restart",
        "stream allow_msg_schedules": "true: what is measured",
        "replicas": "1, as all here run on one machine",
        "sync_interval": "2 min, the default: like Kafka's, its log is flushed by the system",
        "schedule": "Nats-Schedule with @at and a fraction; the client's helper cuts it off",
        "publish": "asynchronous with acknowledgements, at most 4,096 open",
        "consumer": "ordered, in Go: no acknowledgements, like sendlater's receiver",
    },
    versions=lambda: go_versions(NATS_SERVER, "github.com/nats-io/nats.go"),
    sender=[str(GO / "nats"), "send"],
    receiver=[str(GO / "nats"), "receive"],
    servers=_servers,
    install=install_go,
    messages_max=10_000_000,
)
