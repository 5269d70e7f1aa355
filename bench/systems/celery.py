"""Celery: tasks with an ETA, on Redis."""

from bench.peers import PYTHON, install_python, python_versions
from bench.system import DRIVERS, REDIS_SETTINGS, System, redis_alone, redis_version

_DRIVER = DRIVERS / "python" / "celery_driver.py"
SYSTEM = System(
    name="Celery",
    settings={
        **REDIS_SETTINGS,
        "task_acks_late, task_reject_on_worker_lost": "true: a task of a killed worker runs again",
        "visibility_timeout": "30 days: longer than any ETA, or a task would run twice",
        "worker_timer_precision": "0.1 s instead of 1 s, as the documentation says for precision",
        "worker_prefetch_multiplier": "4, the default; the worker holds what has an ETA besides",
        "pool": "prefork, the default, one process a core",
        "task_ignore_result": "true: there is no result",
        "move": "revoke, and send anew: there is no call for it",
    },
    versions=lambda: {**python_versions("celery", "kombu", "redis"), **redis_version()},
    sender=[str(PYTHON / "bin" / "python"), str(_DRIVER)],
    receiver=[
        *(str(PYTHON / "bin" / "celery"), "--workdir", str(_DRIVER.parent)),
        *("--app", "celery_driver", "worker", "--loglevel", "WARNING"),
    ],
    servers=redis_alone,
    install=install_python,
    sends_per_s=500,
    rate_max=2_000,
    messages_max=20_000,
)
