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

    def __call__(
        self, client: redis.Redis, *, rest: tuple[Any, ...] | list[Any] = (), **values: Any
    ) -> Any:
        """Run the script; the server's cache of scripts is filled when it does not know it."""
        assert values.keys() == {*self.keys, *self.args}, (self.name, sorted(values))
        keys = [values[key] for key in self.keys]
        args = [values[arg] for arg in self.args]
        try:
            try:
                return client.evalsha(self.sha, len(keys), *keys, *args, *rest)
            except redis.exceptions.NoScriptError:
                return client.eval(self.lua, len(keys), *keys, *args, *rest)
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
