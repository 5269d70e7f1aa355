"""dramatiq: messages with a delay, on Redis."""

from bench.peers import PYTHON, install_python, python_versions
from bench.system import DRIVERS, REDIS_SETTINGS, System, redis_alone, redis_version

_DRIVER = DRIVERS / "python" / "dramatiq_driver.py"
SYSTEM = System(
    name="dramatiq",
    settings={
        **REDIS_SETTINGS,
        "processes, threads": "one process a core with 8 threads each, the defaults",
        "delay": "send_with_options; a worker holds what is delayed, and acknowledges when it ran",
        "middleware": "the default one",
    },
    versions=lambda: {**python_versions("dramatiq", "redis"), **redis_version()},
    sender=[str(PYTHON / "bin" / "python"), str(_DRIVER)],
    receiver=[
        *(str(PYTHON / "bin" / "dramatiq"), "dramatiq_driver"),
        *("--path", str(_DRIVER.parent)),
    ],
    servers=redis_alone,
    install=install_python,
    verbs="s",
    sends_per_s=1_000,
    rate_max=2_000,
    messages_max=20_000,
)
