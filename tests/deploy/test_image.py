"""The image, built and started without a container engine: `make image`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from installation import Installation
from servers import wait_until

from sendlater.local.process import LOOPBACK, free_ports

ROOT = Path(__file__).parents[2]
TRY_IMAGE = ROOT / "deploy" / "try-image"
OF_THE_SERVICE = {
    "SENDLATER_SERVICE_HOST": "10.0.0.11",
    "SENDLATER_SERVICE_PORT_HTTP": "8080",
    "SENDLATER_PORT": "tcp://10.0.0.11:8080",
}
"""What Kubernetes injects beside the Service of deploy/kubernetes."""


@pytest.fixture(scope="module")
def run():
    """How to run the image that IMAGE names: a tree made by `deploy/try-image build`."""
    if "IMAGE" not in os.environ:
        pytest.skip("needs root, and minutes to build it: make image")
    return [sys.executable, str(TRY_IMAGE), "run", os.environ["IMAGE"]]


def test_the_image_delivers_from_a_read_only_root_and_ends_gracefully(
    run, kafka, redis_url, tmp_path
):
    here = Installation(kafka, redis_url, tmp_path)
    here.service.command = run
    del here.service.environment["SENDLATER_DATA_DIR"]
    here.service.environment |= OF_THE_SERVICE
    here.service.environment["SENDLATER_HTTP_ADDR"] = f"{LOOPBACK}:{free_ports(1)[0]}"
    with here.service, here.readers[here.target]:
        here.service.start()
        here.schedule(b"payload", key=b"one")
        assert here.arrival(b"one").value() == b"payload"

        family = here.service.family
        inside = [p for p in family if p.name() in ("tini", "sendlater", "java")]
        assert {p.name() for p in inside} == {"tini", "sendlater", "java"}
        assert {p.uids().effective for p in inside} == {10001}

        assert here.service.stop() == 0
        assert "finishing what is claimed" in here.service.said()
        wait_until(lambda: not any(p.is_running() for p in family), "no process is left")
    log = here.service.said()
    assert "Read-only file system" not in log
    assert "Permission denied" not in log


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("for tool in gcc make pip uv; do command -v $tool; done; echo none", "none\n"),
        ("touch /opt/sendlater/x 2>&1 | grep -o 'Read-only.*'", "Read-only file system\n"),
        ("cd /tmp && touch x ~/x /dev/shm/x && ls", "x\n"),
        ("id -un; grep CapBnd /proc/self/status", "sendlater\nCapBnd:\t0000000000000000\n"),
    ],
)
def test_what_is_in_the_image_and_what_it_may_do(run, script, told):
    done = subprocess.run(
        [*run, script],
        env={**os.environ, "ENTRYPOINT": "/bin/sh -c"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.returncode) == (told, 0), done.stderr
