"""NATS: message schedules of JetStream, one server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers import GO, NATS_SERVER, go_versions, install_go
from bench.system import Servers, System
from sendlater.errors import Unavailable
from sendlater.local.process import LOOPBACK, Lease, free_ports, last_lines, wait_for

START_TIMEOUT_S = 60.0
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
    lease = Lease(directory)
    lease.take()
    pid = lease.launch([str(GO / "nats-server"), "-c", str(settings)], log=log)
    try:
        wait_for(lambda: lease.exited() or READY in last_lines(log), timeout_s=START_TIMEOUT_S)
        if READY not in last_lines(log):
            raise Unavailable(f"nats-server did not start:\n{last_lines(log)}")
        yield Servers({"BENCH_URL": f"nats://{LOOPBACK}:{port}"}, {"broker": pid})
    finally:
        lease.let_go(pid)


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
