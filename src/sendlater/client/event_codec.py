"""Encodes events as JSON, and decodes them to the type of the handler's type hint."""

import inspect
import json
from collections.abc import Callable
from typing import Any, Protocol, get_type_hints

import msgspec


class Codec(Protocol):
    """Encodes events for `enqueue` and decodes them for handlers."""

    def encode(self, event: Any) -> bytes:
        """Raises TypeError or ValueError for an event that it cannot encode."""

    def decode(self, data: bytes, hint: Any) -> Any:
        """An object of type `hint`; `hint` is Any for a handler without one. Raises ValueError."""


class JsonCodec:
    """JSON: msgspec for structs, dataclasses and plain types, pydantic for its models.

    Bytes pass through unchanged: for events that are not JSON, enqueue bytes and hint bytes.
    """

    def encode(self, event: Any) -> bytes:
        """See Codec."""
        if isinstance(event, bytes):
            return event
        dump = getattr(event, "model_dump_json", None)
        if dump is not None:
            return str(dump()).encode()
        return msgspec.json.encode(event)

    def decode(self, data: bytes, hint: Any) -> Any:
        """See Codec."""
        if hint is bytes:
            return data
        validate = getattr(hint, "model_validate_json", None)
        if validate is not None:
            return validate(data)
        if hint is Any:
            return json.loads(data)
        return msgspec.json.decode(data, type=hint)


def shape_of(function: Callable[..., Any]) -> tuple[Any, bool]:
    """The type hint of a handler's event (Any without one), and whether it takes a context."""
    parameters = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if not 1 <= len(parameters) <= 2:
        raise TypeError(f"{function!r}: expected (event) or (event, context), got {parameters}")
    hint = get_type_hints(function).get(parameters[0].name, Any)
    return hint, len(parameters) == 2
