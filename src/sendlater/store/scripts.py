"""Lua scripts called by name: the header of each file is its signature.

What many scripts need is put in front of them here, once: a script with a key `state` and an
argument `owner` is refused unless the shard knows that owner (an empty one is not asked for), and
one whose header says `full: goes on` is let through by a Redis at its memory limit.
"""

import hashlib
import re
from functools import cache
from importlib import resources
from typing import Any

import redis

from sendlater.errors import Fenced, StoreUnavailable, StoreWentBack

_HEADER = re.compile(r"^-- (keys|args|full): (.+)$", re.MULTILINE)
_OWNED = (
    "local standing_owner = redis.call('HGET', state, 'owner') or '0'; "
    "if owner ~= '' and owner ~= standing_owner then return redis.error_reply("
    "(tonumber(owner) > tonumber(standing_owner) and 'BEHIND' or 'FENCED') .. "
    "' owner ' .. owner .. ' was followed by ' .. standing_owner) end"
)
"""A lower number cannot have followed: the store has gone back, and nobody else is to blame."""
_UNBOUNDED = "redis.call('UNLINK', KEYS[1] .. ':none')"
"""Redis refuses a script's first write when it is full, if that may grow; after one that cannot
(this one does nothing at all) it lets the script finish. Older than the flag of Redis 7 for it."""


class LaneEnded(Fenced):
    """A task outlived its run of a lane; what it would claim nobody would settle."""


_REFUSALS = {
    "FENCED": Fenced,
    "BEHIND": StoreWentBack,
    "ENDED": LaneEnded,
    "ELSEWHERE": StoreWentBack,
}
_FULL = "command not allowed when used memory"
"""How Redis says so, from within a script as well."""


class Script:
    """A Lua file as a function: `claim(client, due=..., now_ms=...)`.

    Values of `keys:` and `args:` are given by name; `rest` is appended to the arguments.
    Raises Fenced, LaneEnded or StoreWentBack where the script refuses, StoreUnavailable when Redis
    does not answer. Nothing is repeated: a lost answer may mean that the script has run.
    """

    def __init__(self, name: str, armed_as: str = "") -> None:
        source = (resources.files(__package__) / "lua" / f"{name}.lua").read_text()
        declared = dict(_HEADER.findall(source))
        self.name = name
        self.must_be_armed = bool(armed_as)
        self.keys = declared["keys"].split()
        args = [arg.partition(":")[::2] for arg in declared.get("args", "").split()]
        self.args = [arg for arg, _ in args]
        lines = [f"local {key} = KEYS[{i}]" for i, key in enumerate(self.keys, 1)]
        for i, (arg, kind) in enumerate(args, 1):
            slot = f"ARGV[{i}]"
            lines.append(f"local {arg} = {f'tonumber({slot})' if kind == 'number' else slot}")
        lines.append(f"local rest = {len(args) + 1}")
        if "state" in self.keys and "owner" in self.args:
            lines.append(_OWNED)
        if declared.get("full") == "goes on":
            lines.append(_UNBOUNDED)
        # One line, so that line numbers in Lua errors still match the file.
        self.lua = "; ".join(lines) + "; " + source + (f"\n-- {armed_as}" if armed_as else "")
        self.sha = hashlib.sha1(self.lua.encode(), usedforsecurity=False).hexdigest()

    def armed(self, name: str) -> "Script":
        """The same script under a name of its own, which a server must have been told by `arm`.

        A server keeps no scripts over a restart, nor does a replica that takes over have them: one
        that does not know this script any more may have lost its last moments.
        """
        return _armed(self.name, name)

    def arm(self, client: Any, **values: Any) -> None:
        """Tell a server this script, by a call that it refuses. Raises StoreUnavailable.

        Not by SCRIPT LOAD, which Redis before 7 writes to its file: it would know it after a
        restart too.
        """
        try:
            client.eval(self.lua, len(self.keys), *self.given(values))
        except redis.exceptions.ResponseError as error:
            if str(error).partition(" ")[0] not in _REFUSALS:
                raise
        except redis.exceptions.RedisError as error:
            raise StoreUnavailable(f"Redis does not answer: {error}") from error

    def is_armed(self, client: Any, **values: Any) -> bool:
        """Whether a server knows this script, by the same call. Raises StoreUnavailable."""
        try:
            client.evalsha(self.sha, len(self.keys), *self.given(values))
        except redis.exceptions.NoScriptError:
            return False
        except redis.exceptions.ResponseError as error:
            if str(error).partition(" ")[0] not in _REFUSALS:
                raise
        except redis.exceptions.RedisError as error:
            raise StoreUnavailable(f"Redis does not answer: {error}") from error
        return True

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
                if self.must_be_armed:
                    raise StoreWentBack(
                        "the store was started anew, or a replica took over"
                    ) from None
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


@cache
def _armed(name: str, armed_as: str) -> Script:
    return Script(name, armed_as)


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
