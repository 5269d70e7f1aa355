"""Tables within the settings: what an inbox is, and the limit of a target topic."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sendlater.limits import TOPIC_CHARS_MAX, WEIGHTS_COUNT_MAX


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Inbox(_Model):
    """A topic that schedules are read from."""

    topic: str
    dialect: Literal["headers", "envelope"] = "headers"
    journal: bool = False
    """A compacted topic that is the source of truth: each delivery writes a tombstone and history,
    as in etf1's scheduler."""
    copy_to: str = ""
    """The journal that every record of this inbox is copied to first, to make it as safe."""
    added_headers: Literal["all", "few"] = "all"
    """Which headers its deliveries get: all of ours, or only `sendlater-id` and `sendlater-due`, by
    which duplicates are known: a burst leaves faster, and takes less room in Kafka."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.journal and (self.dialect != "headers" or self.copy_to):
            raise ValueError(
                f"inbox {self.topic!r}: a journal has dialect 'headers' and no copy_to, "
                f"got {self.dialect!r} and {self.copy_to!r}"
            )
        tells_more = self.dialect != "headers" or self.journal or self.copy_to
        if self.added_headers == "few" and tells_more:
            raise ValueError(
                f"inbox {self.topic!r}: added_headers = 'few' needs dialect 'headers', no journal "
                "and no copy_to, whose deliveries tell more"
            )
        return self


TopicName = Annotated[str, Field(pattern=rf"^[A-Za-z0-9._-]{{1,{TOPIC_CHARS_MAX}}}$")]
"""Kafka's own rule."""


class Limit(_Model):
    """How much of a target topic's messages is delivered per second."""

    per_second: float = Field(ge=0.001, le=100_000)
    burst: int = Field(0, ge=0, le=1_000_000)
    """Most messages at once, after a time with fewer; 0: those of a second, at least one."""
    weights: dict[str, Annotated[float, Field(ge=0.001, le=1_000)]] = Field(
        {}, max_length=WEIGHTS_COUNT_MAX
    )
    """Of callers, as header CALLER_SERVICE names them: their shares while more waits than may be
    delivered. 1 where none is named."""
