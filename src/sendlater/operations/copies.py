"""The copies of changes that follow on the inbox."""

from collections.abc import Sequence
from dataclasses import replace

from sendlater.dialects import encode_again, encode_schedule
from sendlater.model import Record, Schedule


def copy_of_move(
    after: Schedule, *, change: str, home: tuple[str, int | None], journals: Sequence[str]
) -> Record:
    """The copy for an inbox of a schedule that was moved. Raises BadRequest if the dialect
    `headers` does not allow it.

    Of a recurring schedule on a journal it is no new version: the copies that its occurrences leave
    there must go on from it.
    """
    inbox, partition = home
    if after.plan and after.origin is not None and after.origin.topic in journals:
        return encode_again(after)
    return replace(encode_schedule(after, inbox=inbox, change=change), partition=partition)
