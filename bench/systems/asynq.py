"""asynq: a queue for Go on Redis."""

from bench.peers import GO, go_versions, install_go
from bench.system import REDIS_SETTINGS, System, redis_alone, redis_version

SYSTEM = System(
    name="asynq",
    settings={
        **REDIS_SETTINGS,
        "DelayedTaskCheckInterval": "10 ms instead of 5 s, for milliseconds' lateness",
        "TaskCheckInterval": "10 ms instead of 1 s, for the same reason",
        "Concurrency": "64 handlers; a handler only notes the time",
        "enqueue": "32 goroutines: the client has no bulk call",
        "ProcessAt": "rounded up to the second: it keeps whole seconds, and would be early",
        "retention": "none, the default: a finished task is removed",
    },
    versions=lambda: {**go_versions("github.com/hibiken/asynq"), **redis_version()},
    sender=[str(GO / "asynq"), "send"],
    receiver=[str(GO / "asynq"), "receive"],
    servers=redis_alone,
    install=install_go,
    sends_per_s=5_000,
)
