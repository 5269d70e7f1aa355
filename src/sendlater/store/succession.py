"""Handing a space over: the next owner is announced, gets ready, asks, and inherits.

The heir has a number before it owns anything: it may begin runs and batches under it, but claims
and writes nothing (see scripts.py). So all its queries run and are warm when it becomes the owner,
by one script per shard: called by the owner, or by the heir itself when nobody holds the lease.

The first deliveries of a JVM take long, and so does the first reading. So an owner that is alive is
not cut off: it is `leaving`, goes on claiming until the new one has delivered, and parks until that
one reads. It settles its batches itself; if it dies meanwhile, the new owner does, as after every
crash. The batches of two owners that follow one another have different lanes, so that neither takes
the other's for its own.
"""

import uuid

from sendlater.errors import BadSettings, Fenced, NotSupported
from sendlater.limits import KEPT_LANE, LANES_MAX
from sendlater.store.pending import FENCE_ATTEMPTS_MAX, Pending
from sendlater.store.scripts import script
from sendlater.store.shard import Shard

LAYOUT = 1
"""The form of what is in the store, and of how it is handed over. A version raises it that writes
what its predecessor cannot read; it takes a space over from those in HANDED_OVER."""
HANDED_OVER = frozenset((LAYOUT,))
"""Layouts of a running service that this version can follow without a stop."""
HEIR = "lease:heir"
"""The lease of the service that is next; others wait until it is free."""
LEAVING = "lease:leaving"
"""The lease of a service that has handed over, while it settles what it has claimed."""


def lanes_of(owner: int) -> range:
    """Numbers of an owner's lanes in the store: not those of the owner before it."""
    first = owner % 2 * LANES_MAX
    return range(first, first + LANES_MAX)


def layout(pending: Pending) -> int:
    """The layout of the last owner; 0 if there was none, or one of a version without layouts."""
    return int(pending.shards[0].state().get("layout", 0))


def require_layout(pending: Pending) -> None:
    """Raises BadSettings if a newer version has written to the store what this one cannot read."""
    if (stands := layout(pending)) > LAYOUT:
        raise BadSettings(
            f"space {pending.space!r} was last owned by a newer version: its layout is {stands}, "
            f"and this version knows {LAYOUT}; install the newer one, or see Rollback in "
            "docs/production.md"
        )


def require_handover(pending: Pending) -> None:
    """Raises NotSupported if the service that owns the space cannot hand it to this version."""
    if (stands := layout(pending)) not in HANDED_OVER:
        raise NotSupported(
            f"the service on space {pending.space!r} cannot hand over to this version: its layout "
            f"is {stands or 'unknown, as it is older than handovers'}, expected "
            f"{' or '.join(map(str, sorted(HANDED_OVER)))}; stop it, then start this one"
        )


def tell_layout(pending: Pending) -> None:
    """Write this version's layout; only the owner may."""
    pending.shards[0].mark("state", {"layout": LAYOUT})


def announce(pending: Pending) -> tuple[int, int]:
    """Become the heir on every shard; returns its number and that of the owner it follows.

    The caller holds the lease HEIR. Raises Fenced if the owner changes again and again.
    """
    token = uuid.uuid4().hex
    for _ in range(FENCE_ATTEMPTS_MAX):
        owner = pending.owner()
        number = 1 + max(owner, *pending.heirs())
        number += 1 - (number - owner) % 2  # other lanes than the owner's
        if (
            all(
                script("heir")(s.client, state=s.keys["state"], number=number, token=token)
                for s in pending.shards
            )
            and pending.owner() == owner
        ):
            return number, owner
    raise Fenced(f"the owner of space {pending.space!r} changes all the time")


def stands(pending: Pending, number: int) -> str:
    """`owner` if this number owns every shard, `heir` if it owns or will inherit each, else ''."""
    # Both at once: it may be inherited between two looks.
    states, me = [shard.state() for shard in pending.shards], str(number)
    if all(state.get("owner") == me for state in states):
        return "owner"
    inherits = all(me in (state.get("owner"), state.get("heir")) for state in states)
    return "heir" if inherits else ""


def tell_ready(pending: Pending, number: int, *, asks: bool) -> None:
    """Tell the owner that this heir is warm; `asks`: and wants the space now."""
    pending.shards[0].mark("state", {"ready": number, **({"asked": number} if asks else {})})


def ask(pending: Pending) -> bool:
    """Ask the owner to hand over to its heir; False if there is none that is ready."""
    ready = ready_heir(pending)
    if ready:
        pending.shards[0].mark("state", {"asked": ready})
    return bool(ready)


def ready_heir(pending: Pending, *, asking: bool = False) -> int:
    """The number of the heir if it is warm (and `asking` for the space), else 0."""
    state = pending.shards[0].state()
    heir = state.get("heir", "0")
    told = state.get("asked" if asking else "ready")
    return int(heir) if told == heir else 0


def doubt(pending: Pending) -> None:
    """Have the heir tell again that it is ready: its lease may outlive it for a while."""
    pending.shards[0].mark("state", {"ready": ""})


def inherit(pending: Pending, number: int, *, bound_stays: bool, leaves: bool = False) -> bool:
    """Make the heir the owner of every shard; False if it is the heir no longer.

    `bound_stays`: no server has restarted, so that what may be claimed may still be. `leaves`: the
    last owner is alive, and goes on until it is dismissed.
    """
    return all(
        script("inherit")(
            shard.client,
            **shard._keys("state", "wake"),
            number=number,
            bound_stays="1" if bound_stays else "",
            leaves="1" if leaves else "",
        )
        for shard in pending.shards
    )


def shares(shard: Shard, number: int) -> bool:
    """Whether this owner or heir does not deliver alone yet: the last one may still claim."""
    state, me = shard.state(), str(number)
    if state.get("leaving") == me:
        return False
    return state.get("owner") != me or state.get("leaving") != state.get("left")


def reads_along(pending: Pending) -> bool:
    """Whether the last owner may still park what it reads."""
    return any("reading" in shard.state() for shard in pending.shards)


def take_reading(pending: Pending) -> None:
    """From now on the last owner parks nothing: this one reads."""
    for shard in pending.shards:
        shard.mark("state", {"reading": ""})


def dismiss(pending: Pending) -> None:
    """The last owner claims nothing more, and settles what it has claimed."""
    for shard in pending.shards:
        if leaving := shard.state().get("leaving", ""):
            shard.mark("state", {"left": leaving, "reading": ""}, word="draining")


def may_leave(pending: Pending, owner: int) -> bool:
    """Whether this last owner has been dismissed, or is not the last one any more."""
    states, me = [shard.state() for shard in pending.shards], str(owner)
    return all(state.get("leaving") != me or state.get("left") == me for state in states)


def foreign_lanes(pending: Pending, owner: int) -> set[int]:
    """Lanes of other owners that have left batches."""
    lanes = {lane for shard in pending.shards for lane in shard.batches().values()}
    return lanes.difference(lanes_of(owner))


def left_lanes(pending: Pending, owner: int) -> set[int]:
    """The same without those of what is kept (see store/unsettled.py)."""
    return {lane for lane in foreign_lanes(pending, owner) if lane < KEPT_LANE}


def release_lane(pending: Pending, lane: int, *, owner: int) -> None:
    """Put back what another owner's lane has left, after a look-up; see Pending.release_all."""
    for shard in pending.shards:
        for name, of_lane in shard.batches().items():
            if of_lane == lane:
                shard.release(name, owner=owner, armed_as=f"{pending.space}/{owner}")
