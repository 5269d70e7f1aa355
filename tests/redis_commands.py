"""Counts what Redis is asked to do in one space, whoever else uses the server."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis


@contextmanager
def counted(client: redis.Redis, space: str) -> Iterator[Callable[[], Counter[str]]]:
    """A function that counts the commands since its last call by name, those in scripts too."""
    with client.monitor() as told:

        def count() -> Counter[str]:
            mark, made = uuid.uuid4().hex, Counter[str]()
            client.echo(mark)
            while mark not in (command := told.next_command()["command"]):
                if f"{{{space}:" in command:
                    made[command.partition(" ")[0].upper()] += 1
            return made

        yield count
