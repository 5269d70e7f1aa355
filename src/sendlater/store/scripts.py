"""Lua scripts called by name: the header of each file is its signature.

Code that many scripts need is put in front of them here. A script with a key `state` and an
argument `owner` is refused unless that is the shard's owner (an empty `owner` is not checked). A
script whose header says `also: heir leaving` is not refused for whom these fields of `state` name.
One whose header says `full: goes on` also runs when Redis is at its memory limit; one that says
`uses: holds` decides conditions, one that says `uses: tags` keeps the index of tags, and with
another name, it has what is in that file of lua/parts. One that says `sealed: refuses` is refused
while the shard is copied to others: see store/reshard.py. Each knows LIMITED: what waits for its
topic's limit has the score LIMITED + due_ms; and PAUSED, the score of what is paused.
"""

import hashlib
import re
from functools import cache
from importlib import resources
from typing import Any

import redis

from sendlater.errors import Fenced, StoreUnavailable, StoreWentBack
from sendlater.model import PAUSED_MS
from sendlater.redis_client import REDIS_ERRORS
from sendlater.store.codec import LIMITED_MS, VERSION_CHARS

_HEADER = re.compile(r"^-- (keys|args|full|uses|also|sealed): (.+)$", re.MULTILINE)
_OWNED = (
    "local of_shard = redis.call('HMGET', state, 'owner', 'tagged'%s); "
    "local standing_owner, has_tags = of_shard[1] or '0', of_shard[2]; "
    "if owner ~= '' and owner ~= standing_owner%s then return redis.error_reply("
    "(tonumber(owner) > tonumber(standing_owner) and 'BEHIND' or 'FENCED') .. "
    "' owner ' .. owner .. ' was followed by ' .. standing_owner) end"
)
"""BEHIND: the shard knows a lower number, so the store went back; no other service took over."""
_SEALED = (
    "if redis.call('HEXISTS', state, 'resharding') == 1 then return redis.error_reply("
    "'SEALED the space is being laid out anew: try again when `sendlater reshard` has ended') end"
)
_UNBOUNDED = "redis.call('UNLINK', KEYS[1] .. ':none')"
"""A full Redis refuses a script only at its first write, and only if that can grow memory. This
write cannot (it does nothing), so the script runs. It works before Redis 7, which has a flag."""


PARTS = ("packed", "elsewhere", "waiting", "back", "prefetched", "recall", "passes")
"""Files of lua/parts that a header may name, in an order in which each finds what it needs."""

_HOLDS = (
    "local function holds(only_if, due_ms, stands, packed) "
    "local version = string.match(only_if, '^version=(.+)$') "
    "if version then return stands == 'pending' "
    f"and string.sub(redis.sha1hex(packed), 1, {VERSION_CHARS}) == version end "
    "if stands == '' then return only_if ~= 'once' end "
    "if stands == 'claimed' then return only_if == 'later' end "
    "local standing_ms = struct.unpack('>I8', packed, 2) "
    "return only_if == 'later' and due_ms > standing_ms "
    "or only_if == 'earlier' and due_ms < standing_ms end"
)
"""Whether a condition (see `operations.conditions`) holds for a schedule that is due at due_ms.
`stands` is what its id has now: nothing (''), `pending` or `claimed`; `packed` is that row. Of
`once` where nothing stands: that it has stood before; whether it has, lua/park.lua knows."""


def _part(name: str) -> str:
    """lua/parts/<name>.lua on one line, without its comments."""
    text = (resources.files(__package__) / "lua" / "parts" / f"{name}.lua").read_text()
    lines = (line.partition("--")[0].strip() for line in text.splitlines())
    return " ".join(line for line in lines if line)


class LaneEnded(Fenced):
    """A task outlived its run, attempt or batch: nobody would settle what it claims."""


_REFUSALS = {
    "FENCED": Fenced,
    "BEHIND": StoreWentBack,
    "ENDED": LaneEnded,
    "ELSEWHERE": StoreWentBack,
    "SEALED": StoreUnavailable,
}
_FULL = "command not allowed when used memory"
"""Part of Redis's error when it is full, also inside a script."""
_IN_PIPELINE = re.compile(r"^Command # \d+ .*? of pipeline caused error: ", re.DOTALL)
_TAKES_NONE = ("NOREPLICAS", "MISCONF", "CLUSTERDOWN", "MASTERDOWN")
"""Parts of its errors when it takes no writes for now: without its replicas or its disk, or in a
cluster that lacks a master. The driver leaves out the words that it knows."""


def _told(error: Exception) -> Exception:
    """What an error of Redis is for callers; itself if it is a mistake in a script or its call."""
    # In a pipeline redis-py says which command it was.
    word, _, told = re.sub(_IN_PIPELINE, "", str(error)).partition(" ")
    if word in _REFUSALS:
        return _REFUSALS[word](told)
    if _FULL in str(error):
        return StoreUnavailable(f"Redis is full, raise its maxmemory: {error}")
    is_answer = isinstance(error, redis.exceptions.ResponseError)
    is_down = isinstance(error, redis.exceptions.ClusterDownError)
    if is_answer and not is_down and not any(word in str(error) for word in _TAKES_NONE):
        return error
    return StoreUnavailable(f"Redis does not answer: {error}")


def _require_refusal(error: Exception) -> None:
    """Raises what `error` is, unless a script has refused, and so has run."""
    if str(error).partition(" ")[0] not in _REFUSALS:
        raise _told(error) from error


class Script:
    """A Lua file as a function: `claim(client, due=..., now_ms=...)`.

    Values of `keys:` and `args:` are given by name; `rest` is appended to the arguments.
    Raises Fenced, LaneEnded or StoreWentBack if the script refuses, StoreUnavailable if Redis does
    not answer or is full. Nothing is repeated: if the answer was lost, the script may have run.
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
        lines.append(f"local LIMITED, PAUSED = {LIMITED_MS}, {PAUSED_MS}")
        uses = declared.get("uses", "").split()
        if "holds" in uses:
            lines.append(_HOLDS)
        if "state" in self.keys and "owner" in self.args:
            also = declared.get("also", "").split()
            fields = "".join(f", '{field}'" for field in also)
            others = "".join(f" and owner ~= of_shard[{i}]" for i in range(3, 3 + len(also)))
            lines.append(_OWNED % (fields, others))
        elif "tags" in uses:  # without `state` it only moves what has been indexed
            lines.append(f"local has_tags = {'false' if 'state' in self.keys else 'true'}")
        if "tags" in uses:
            lines.append(_part("tags"))
        for part in PARTS:
            if part in uses:
                lines.append(_part(part))
        if declared.get("sealed") == "refuses":
            lines.append(_SEALED)
        if declared.get("full") == "goes on":
            lines.append(_UNBOUNDED)
        # One line, so that line numbers in Lua errors still match the file.
        self.lua = "; ".join(lines) + "; " + source + (f"\n-- {armed_as}" if armed_as else "")
        self.sha = hashlib.sha1(self.lua.encode(), usedforsecurity=False).hexdigest()

    def armed(self, name: str) -> "Script":
        """The same script under its own name; it runs only on a server that got it by `arm`.

        A server loses its scripts when it restarts, and a replica that takes over does not have
        them: a server that does not know this script may have lost its last moments.
        """
        return _armed(self.name, name)

    def arm(self, client: Any, **values: Any) -> None:
        """Give a server this script, by a call that it refuses. Raises StoreUnavailable.

        Not by SCRIPT LOAD: Redis before 7 writes that to its append-only file, and would know the
        script after a restart too.
        """
        try:
            client.eval(self.lua, len(self.keys), *self.given(values))
        except REDIS_ERRORS as error:
            _require_refusal(error)

    def is_armed(self, client: Any, **values: Any) -> bool:
        """Whether a server knows this script, by the same call. Raises StoreUnavailable."""
        try:
            client.evalsha(self.sha, len(self.keys), *self.given(values))
        except redis.exceptions.NoScriptError:
            return False
        except REDIS_ERRORS as error:
            _require_refusal(error)
        return True

    def given(self, values: dict[str, Any]) -> list[Any]:
        """Named values as the list of keys and arguments for Redis."""
        assert values.keys() == {*self.keys, *self.args}, (self.name, sorted(values))
        return [values[name] for name in (*self.keys, *self.args)]

    def __call__(
        self, client: redis.Redis, *, rest: tuple[Any, ...] | list[Any] = (), **values: Any
    ) -> Any:
        """Run the script; a server that does not know it gets it, unless it must be armed."""
        given = self.given(values)
        try:
            try:
                return client.evalsha(self.sha, len(self.keys), *given, *rest)
            except redis.exceptions.NoScriptError:
                if self.must_be_armed:
                    raise StoreWentBack("the store was restarted, or a replica took over") from None
                return client.eval(self.lua, len(self.keys), *given, *rest)
        except REDIS_ERRORS as error:
            raise _told(error) from error


@cache
def script(name: str) -> Script:
    """The script in lua/<name>.lua."""
    return Script(name)


@cache
def _armed(name: str, armed_as: str) -> Script:
    return Script(name, armed_as)


def run_many(verb: Script, client: Any, calls: list[dict[str, Any]]) -> list[Any]:
    """Call a script of one shard many times, in at most two round trips; answers in order. A call
    has the named values of the script, and may have `rest`.

    Each call is atomic, all of them are not. Raises StoreUnavailable: some may have run then.
    """
    if not calls:
        return []
    if len(calls) == 1:
        return [verb(client, **calls[0])]
    # The first call makes the server know the script; inside a pipeline that is too late.
    first = verb(client, **calls[0])
    pipe = client.pipeline(transaction=False)
    for call in calls[1:]:
        rest = call.pop("rest", ())
        # Not `pipe.evalsha`, which a pipeline of a cluster refuses whatever its keys are.
        pipe.execute_command("EVALSHA", verb.sha, len(verb.keys), *verb.given(call), *rest)
    try:
        return [first, *pipe.execute()]
    except REDIS_ERRORS as error:
        raise _told(error) from error
