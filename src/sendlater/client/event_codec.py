"""Encodes events, and decodes them to the type of the handler's type hint."""

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, cast, get_type_hints

import msgspec

from sendlater.client.failures import called
from sendlater.errors import Unavailable
from sendlater.model import Headers


class Codec(Protocol):
    """Encodes events for `enqueue` and decodes them for handlers."""

    def encode(self, event: Any) -> bytes:
        """Raises TypeError or ValueError for an event that it cannot encode."""

    def decode(self, data: bytes, hint: Any) -> Any:
        """An object of type `hint`; `hint` is Any for a handler without one. Raises ValueError."""


class RecordCodec(Protocol):
    """A codec that sees the record too. It may block: it is called in a thread."""

    def encode(self, event: Any, *, topic: str, headers: Headers) -> bytes:
        """As Codec.encode; what it appends to `headers` is sent with the event."""

    def decode(self, data: bytes, hint: Any, *, topic: str, headers: Headers) -> Any:
        """As Codec.decode. Raises Unavailable for an event that can be decoded later."""


class SerializerCodec:
    """A RecordCodec of confluent-kafka's serializers: Avro, Protobuf or JSON Schema, with a Schema
    Registry. The handler gets what the deserializer returns (`from_dict`), whatever its hint.

    `serialize` and `deserialize` are called as confluent-kafka's own clients do it:
    `serialize(event, SerializationContext(topic, MessageField.VALUE, headers))`.
    """

    def __init__(
        self, serialize: Callable[[Any, Any], Any], deserialize: Callable[[bytes, Any], Any]
    ) -> None:
        self._serialize, self._deserialize = serialize, deserialize

    def encode(self, event: Any, *, topic: str, headers: Headers) -> bytes:
        """See RecordCodec. Raises confluent-kafka's SerializationError."""
        return bytes(self._serialize(event, _context(topic, headers)))

    def decode(self, data: bytes, hint: Any, *, topic: str, headers: Headers) -> Any:  # noqa: ARG002
        """See RecordCodec."""
        from confluent_kafka.serialization import SerializationError

        try:
            return self._deserialize(data, _context(topic, headers))
        except (SerializationError, ValueError, TypeError, KeyError):
            raise
        except Exception as error:
            if getattr(error, "http_status_code", None) == NOT_FOUND:
                raise  # the registry has answered: it does not know the schema
            raise Unavailable(f"Schema Registry: {type(error).__name__}: {error}") from error


NOT_FOUND = 404


def _context(topic: str, headers: Headers) -> Any:
    from confluent_kafka.serialization import MessageField, SerializationContext

    # It may append to the list, of which it says that values may be text, too.
    return SerializationContext(topic, MessageField.VALUE, cast("Any", headers))


def sees_records(codec: Codec | RecordCodec) -> TypeGuard[RecordCodec]:
    """Which of the two a codec is."""
    return "topic" in inspect.signature(codec.encode).parameters


async def encoded(codec: Codec | RecordCodec, event: Any, *, topic: str, headers: Headers) -> bytes:
    """The payload of an event; its headers may become more."""
    if sees_records(codec):
        return await asyncio.to_thread(called, codec.encode, event, topic=topic, headers=headers)
    return cast("Codec", codec).encode(event)


async def decoded(
    codec: Codec | RecordCodec, data: bytes, hint: Any, *, topic: str, headers: Headers
) -> Any:
    """The event of a payload."""
    if sees_records(codec):
        return await asyncio.to_thread(
            called, codec.decode, data, hint, topic=topic, headers=headers
        )
    return cast("Codec", codec).decode(data, hint)


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
