"""Lua scripts called by name: the header of each file is its signature."""

import hashlib
import re
from functools import cache
from importlib import resources
from typing import Any

import redis

from sendlater.errors import Fenced, StoreUnavailable, StoreWentBack

_HEADER = re.compile(r"^-- (keys|args): (.+)$", re.MULTILINE)


class LaneEnded(Fenced):
    """A task outlived its run of a lane; what it would claim nobody would settle."""


_REFUSALS = {"FENCED": Fenced, "ENDED": LaneEnded, "ELSEWHERE": StoreWentBack}
_FULL = "command not allowed when used memory"
"""How Redis says so, from within a script as well."""


class Script:
    """A Lua file as a function: `claim(client, due=..., now_ms=...)`.

    Values of `keys:` and `args:` are given by name; `rest` is appended to the arguments.
    Raises Fenced, LaneEnded or StoreWentBack where the script refuses, StoreUnavailable when Redis
    does not answer. Nothing is repeated: a lost answer may mean that the script has run.
    """

    def __init__(self, name: str) -> None:
        source = (resources.files(__package__) / "lua" / f"{name}.lua").read_text()
        declared = dict(_HEADER.findall(source))
        self.name = name
        self.keys = declared["keys"].split()
        args = [arg.partition(":")[::2] for arg in declared.get("args", "").split()]
        self.args = [arg for arg, _ in args]
        lines = [f"local {key} = KEYS[{i}]" for i, key in enumerate(self.keys, 1)]
        for i, (arg, kind) in enumerate(args, 1):
            slot = f"ARGV[{i}]"
            lines.append(f"local {arg} = {f'tonumber({slot})' if kind == 'number' else slot}")
        lines.append(f"local rest = {len(args) + 1}")
        # One line, so that line numbers in Lua errors still match the file.
        self.lua = "; ".join(lines) + "; " + source
        self.sha = hashlib.sha1(self.lua.encode(), usedforsecurity=False).hexdigest()

    def given(self, values: dict[str, Any]) -> list[Any]:
        """Values by name, as the list of keys and arguments that Redis wants."""
        assert values.keys() == {*self.keys, *self.args}, (self.name, sorted(values))
        return [values[name] for name in (*self.keys, *self.args)]

    def __call__(
        self, client: redis.Redis, *, rest: tuple[Any, ...] | list[Any] = (), **values: Any
    ) -> Any:
        """Run the script; the server's cache of scripts is filled when it does not know it."""
        given = self.given(values)
        try:
            try:
                return client.evalsha(self.sha, len(self.keys), *given, *rest)
            except redis.exceptions.NoScriptError:
                return client.eval(self.lua, len(self.keys), *given, *rest)
        except redis.exceptions.ResponseError as error:
            word, _, told = str(error).partition(" ")
            if word in _REFUSALS:
                raise _REFUSALS[word](told) from error
            if _FULL in str(error):
                raise StoreUnavailable(f"Redis is full, raise its maxmemory: {error}") from error
            raise
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
            raise StoreUnavailable(f"Redis does not answer: {error}") from error


@cache
def script(name: str) -> Script:
    """The script in lua/<name>.lua."""
    return Script(name)


def run_many(verb: Script, client: Any, calls: list[dict[str, Any]]) -> list[Any]:
    """Call a script that touches one shard many times, in one round trip; answers in order.

    Each call is atomic, the whole is not. Raises StoreUnavailable: some may have run then.
    """
    if not calls:
        return []
    if len(calls) == 1:
        return [verb(client, **calls[0])]
    # The first fills the server's cache of scripts; in a pipeline it is too late to ask.
    first = verb(client, **calls[0])
    pipe = client.pipeline(transaction=False)
    for call in calls[1:]:
        pipe.evalsha(verb.sha, len(verb.keys), *verb.given(call))
    try:
        return [first, *pipe.execute()]
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
        raise StoreUnavailable(f"Redis does not answer: {error}") from error
