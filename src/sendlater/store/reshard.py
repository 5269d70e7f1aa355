"""Changes the number of shards of a space, or the servers they are on, while no service runs.

1. copy: the shards are sealed (changes are refused) and fenced, and all they hold is copied under
   keys that nobody reads, `{space:N}:next:...`; then it is counted.
2. One write says that from now on the copy counts (`retire`).
3. The old keys are removed; what is said then is `install`: the copy gets their names, and last the
   states, which were sealed until then.
4. `done`: every server gets its new place, and the space can be used.

Whoever is killed anywhere and runs again ends the same: in step 1 the copy begins anew, later it
goes on. Each step may be repeated. Until the end no service starts: see store/places.py.
"""

import re
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec

from sendlater.errors import BadSettings, Unavailable
from sendlater.limits import COPY_COUNT_MAX
from sendlater.store.connection import Clients, answering, await_disk
from sendlater.store.pending import Pending
from sendlater.store.places import MOVED, RESHARDING, identities, place_key
from sendlater.store.reshard_copy import COPY, FIRST, HASHES, SAME, SETS, Copier, Place, is_known
from sendlater.store.scripts import script

AGAIN = "start the service and stop it gracefully, without new records meanwhile, then try again"
_KEYS = (
    *(b"due", b"record", b"seen", b"seen:topics", b"state", b"wake", b"targets", b"wanted"),
    *(b"changes", b"once", b"tally", b"recent", b"due:tags", b"limits", b"limits-from", b"batches"),
    *(b"standby", b"handovers", b"asked", b"bursts", *HASHES, *SETS, *FIRST),
)
_FAMILIES = (b"due:tag:", b"limits:", b"batches:", b"batches-", b"lease", COPY)


class Plan(msgspec.Struct, frozen=True):
    """What is under way, as the old first server remembers it."""

    token: str
    stage: str
    """`copy`, `retire`, `install` or `done`."""
    shards_from: int
    servers_from: int
    shards: int
    servers: int


class Reshard:
    """One command. `told(done)` is called with the number of schedules that are copied."""

    def __init__(
        self,
        old: Clients,
        new: Clients,
        *,
        space: str,
        shards: int,
        told: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`old`: the servers the space lies on; `new`: those it will lie on, the same or others.

        Raises BadSettings if these cannot be its servers, StoreUnavailable.
        """
        if len(new) > shards:
            raise BadSettings(
                f"expected at least as many shards as servers, got {shards} shards and "
                f"{len(new)} servers"
            )
        self.old, self.new, self.space, self.shards = old, new, space, shards
        self._told, self._plan_key = told, f"{space}:reshard"
        with answering():
            text = old[0].get(self._plan_key)
            self.plan = msgspec.json.decode(text, type=Plan) if text else None
            stands = old[0].hget(f"{{{space}:0}}:state", "shards")
            place = old[0].get(place_key(space))
        if self.plan is None and (place or b"").startswith(RESHARDING.encode()):
            raise BadSettings("redis: expected the servers that an unfinished change began with")
        if self.plan is None and stands is None:
            raise BadSettings(f"space {space!r} is not on this Redis yet: set shards, and start")
        self.shards_from = self.plan.shards_from if self.plan else int(stands)
        servers_from = self.plan.servers_from if self.plan else len(old)
        if servers_from != len(old):
            raise BadSettings(f"redis: expected the {servers_from} servers that the space is on")
        with answering():
            self._require_target()
        if self.plan is None:
            self.pending.require_layout()

    @property
    def pending(self) -> Pending:
        """The store as it was before."""
        return Pending(self.old, space=self.space, shards=self.shards_from)

    @property
    def goes_on(self) -> bool:
        """Whether an earlier run has been killed after the copy was complete."""
        return self.plan is not None and self.plan.stage != "copy"

    @property
    def stays(self) -> bool:
        """Whether nothing changes: as many shards, on the same servers."""
        return self.shards == self.shards_from and identities(self.new) == (identities(self.old))

    def run(self) -> None:
        """Do it, or go on with it. Raises Unavailable, BadSettings: then nothing has changed."""
        with answering():
            if not self.goes_on:
                self.require_ready()
                self._copy_or_leave()
            self._finish()

    # --- before ---------------------------------------------------------------------------------

    def require_ready(self) -> None:
        """Raises Unavailable or BadSettings if the store is not as a graceful stop leaves it, or
        holds what this version does not know."""
        self._require_known()
        pending = self.pending
        states = [shard.state() for shard in pending.shards]
        for name in ("seen", "seen:topics"):
            each = list(self._old.all(name.encode()))
            if any(one != each[0] for one in each):
                raise Unavailable(
                    f"the shards have not read equally far ({name} differs), so that schedules "
                    f"would be doubled: {AGAIN}"
                )
        for field in map(bytes.decode, SAME):
            if len({state.get(field) for state in states}) > 1:
                raise Unavailable(f"the shards differ in {field}: {AGAIN}")
        for shard in pending.shards:
            for name in shard.batches():
                if shard.held(name):
                    raise Unavailable(
                        f"shard {shard.number} has an unsettled batch, which may have been "
                        f"delivered: {AGAIN}"
                    )

    def _require_known(self) -> None:
        topics_move = identities(self.new)[0] != identities(self.old)[0]
        if topics_move and self.old[0].exists(f"{self.space}:topics"):
            raise BadSettings(
                "expected the same first server: topics on Redis lie there, and are not moved"
            )
        for client in self.old:
            for _, name in self._keys(client):
                if name not in _KEYS and not name.startswith(_FAMILIES):
                    raise BadSettings(f"unknown key {name!r}: written by a newer version")
        for state in self._old.all(b"state"):
            if unknown := sorted(field for field in state if not is_known(field)):
                raise BadSettings(f"unknown in state: {unknown}: written by a newer version")
        for number, client in enumerate(self.new):
            if identities(self.new)[number] in identities(self.old):
                continue
            if any(not name.startswith(COPY) for _, name in self._keys(client)):
                raise BadSettings(
                    f"server {number + 1} of the new ones holds a space {self.space!r} already"
                )

    def _require_target(self) -> None:
        if self.goes_on:
            assert self.plan is not None
            if (self.plan.shards, self.plan.servers) != (self.shards, len(self.new)):
                raise BadSettings(
                    f"a change to {self.plan.shards} shards on {self.plan.servers} servers is "
                    f"under way: run that command again, got {self.shards} on {len(self.new)}"
                )
            for number, client in enumerate(self.new):
                place = (client.get(place_key(self.space)) or b"").decode()
                meant = f"{RESHARDING} {number}/{len(self.new)}"
                if not place or (place.startswith(RESHARDING) and place != meant):
                    raise BadSettings(
                        f"expected the new servers as they were given before: {number + 1} of "
                        f"{len(self.new)} was not in this place"
                    )

    # --- copying --------------------------------------------------------------------------------

    @property
    def _old(self) -> Place:
        return Place(self.old, self.space, self.shards_from)

    @property
    def _copy(self) -> Place:
        return Place(self.new, self.space, self.shards, copy=True)

    def _copy_or_leave(self) -> None:
        token = uuid.uuid4().hex
        try:
            owner = self._seal(token)
            self.require_ready()  # again, now that nobody can change it
            for client in self.new:
                self._remove(client, copy=True)
            copier = Copier(self._old, self._copy, told=self._told)
            copier.copy(owner=owner, token=token)
            wrong = [f"{name}: {a}, copied {b}" for name, a, b in copier.counts() if a != b]
            if wrong:
                raise Unavailable(f"the copy is not complete ({'; '.join(wrong)}): try again")
        except (Exception, KeyboardInterrupt):
            if self.plan is not None:
                self.leave()
            raise
        self._await_disk()
        self._say("retire")

    def _seal(self, token: str) -> int:
        """From now on no service starts, no owner and no client changes anything; returns the
        number of the owner that we are."""
        plan = Plan(token, "copy", self.shards_from, len(self.old), self.shards, len(self.new))
        self.old[0].set(self._plan_key, msgspec.json.encode(plan))
        self.plan = plan
        for client in self.old:
            client.set(place_key(self.space), RESHARDING)
        for number, client in enumerate(self.new):
            client.set(place_key(self.space), f"{RESHARDING} {number}/{len(self.new)}")
        pending = self.pending
        for shard in pending.shards:
            shard.mark("state", {"resharding": token})
        number = 1 + max(*pending.owners(), *pending.heirs())
        for shard in pending.shards:
            state = shard.state()
            reads = "reader" in state and state["reader"] == state.get("owner")
            state_key = shard.keys["state"]
            if not script("fence")(shard.client, state=state_key, number=number, token=token):
                raise Unavailable("another command lays the space out anew")
            if reads:
                shard.mark("state", {"reader": number})
        return number

    def leave(self) -> None:
        """Give an unfinished copy up: the space is as it was."""
        self._say("copy")  # it may be another command's by now
        for client in self.new:
            self._remove(client, copy=True)
            if client not in self.old:
                client.delete(place_key(self.space))
        for shard in self.pending.shards:
            shard.mark("state", {"resharding": ""})
        self._place(self.old)
        self.old[0].delete(self._plan_key)
        self.plan = None

    # --- afterwards -----------------------------------------------------------------------------

    def _finish(self) -> None:
        assert self.plan is not None
        if self.plan.stage == "retire":
            self._await_disk()
            for client in self.old:
                self._remove(client, copy=False)
            self._say("install")
        if self.plan.stage == "install":
            self._await_disk()
            self._move_rest()
            # The seals last: until a shard is complete nobody may write to it.
            for is_state in (False, True):
                for client in self.new:
                    self._install(client, is_state=is_state)
            for client in self.old:
                self._unseal(client)
            self._say("done")
        for client in self.old:
            client.set(place_key(self.space), MOVED)
        self._place(self.new)
        self.old[0].delete(self._plan_key)

    def _say(self, stage: str) -> None:
        """Write the stage down. Raises Unavailable if the change is not ours any more."""
        assert self.plan is not None
        self.plan = msgspec.structs.replace(self.plan, stage=stage)
        told, key = msgspec.json.encode(self.plan), self._plan_key
        if not script("reshape")(self.old[0], plan=key, token=self.plan.token, told=told):
            raise Unavailable("another command has gone on with this change, or ended it")

    def _await_disk(self) -> None:
        """A server that loses its last second must not go back behind what another has done since.
        One alone does not: it loses the later step first."""
        places = (*identities(self.old), *identities(self.new))
        if len({server for servers, _ in places for server in servers}) > 1:
            await_disk((*self.old, *self.new))

    def _place(self, clients: Clients) -> None:
        for number, client in enumerate(clients):
            client.set(place_key(self.space), f"{number}/{len(clients)}")

    def _keys(self, client: Any) -> Iterator[tuple[bytes, bytes]]:
        """The keys of shards on a server, and what is behind the shard in each."""
        shape = re.compile(rb"\{%s:\d+\}:(.+)" % re.escape(self.space.encode()), re.DOTALL)
        for key in client.scan_iter(match=f"{{{self.space}:*}}:*", count=COPY_COUNT_MAX):
            if found := shape.fullmatch(key):
                yield key, found[1]

    def _remove(self, client: Any, *, copy: bool) -> None:
        """Remove the old keys, or the copy. Leases stay, they are of who is at work; and the old
        states, they are sealed."""
        for some in _chunks(
            key
            for key, name in self._keys(client)
            if name.startswith(COPY) == copy and not name.startswith(b"lease") and name != b"state"
        ):
            if not copy:
                self._say("retire")  # these names are those of the new layout, too
            with client.pipeline(transaction=False) as pipe:
                for key in some:
                    pipe.unlink(key)
                pipe.execute()

    def _install(self, client: Any, *, is_state: bool) -> None:
        """Give the copy its names; of each shard the state, or all else."""
        for some in _chunks(
            key
            for key, name in self._keys(client)
            if name.startswith(COPY) and (name == COPY + b"state") == is_state
        ):
            with client.pipeline(transaction=False) as pipe:
                for key in some:
                    pipe.execute_command("RENAME", key, key.replace(b"}:" + COPY, b"}:", 1))
                for answer in pipe.execute(raise_on_error=False):
                    # A scan may name a key twice.
                    if isinstance(answer, Exception) and "no such key" not in str(answer):
                        raise answer

    def _unseal(self, client: Any) -> None:
        """Remove the states of shards that are not here any more: those that are still sealed."""
        for key, name in self._keys(client):
            if name == b"state" and client.hexists(key, "resharding"):
                client.unlink(key)

    def _move_rest(self) -> None:
        """What belongs to no shard lies on the first server: the audit trail, what undoes a change,
        and answers to requests. It is copied, and stays on the old one until it expires."""
        if identities(self.new)[0] == identities(self.old)[0]:
            return
        for name in ("audit", "changed:*", "undo:*", "request:*"):
            for key in self.old[0].scan_iter(match=f"{self.space}:{name}", count=COPY_COUNT_MAX):
                self.new[0].delete(key)
                if name.startswith("changed"):
                    self.new[0].sadd(key, *self.old[0].smembers(key))
                elif name.startswith("request"):
                    self.new[0].set(key, self.old[0].get(key) or b"")
                elif rows := self.old[0].lrange(key, 0, -1):
                    self.new[0].rpush(key, *rows)
                if (left_ms := self.old[0].pttl(key)) > 0:
                    self.new[0].pexpire(key, left_ms)


def _chunks(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    return iter(lambda: list(islice(keys, COPY_COUNT_MAX)), [])
