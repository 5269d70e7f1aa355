"""sendlater before its messages were made cheaper: what one costs now is a share of that."""

from bench.peers import OLDER, OLDER_COMMIT, OLDER_PYTHON, install_older
from bench.system import System
from bench.systems import sendlater


def _driver(what: str) -> list[str]:
    # -P: not the `bench` of the working directory.
    return [str(OLDER_PYTHON), "-P", "-m", "bench.drivers.sendlater_driver", what]


SYSTEM = System(
    name="older sendlater",
    settings={
        **sendlater.ON_KAFKA_AND_REDIS,
        "Redis GLIBC_TUNABLES": "none: this launcher is older, too",
        "client, sender and receiver": "those of the same commit",
    },
    versions=lambda: {"commit": OLDER_COMMIT[:7]},
    sender=_driver("send"),
    receiver=_driver("receive"),
    servers=sendlater.kind(
        kafka=True,
        redis=True,
        settings={"PYTHONPATH": f"{OLDER / 'src'}:{OLDER}"},
        python=str(OLDER_PYTHON),
    ),
    install=install_older,
    verbs="s",
    rate_max=2_000,
    has_inbox=True,
    messages_max=1_000_000,
)
