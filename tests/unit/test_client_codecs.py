"""confluent-kafka's own serializers on events, with its own stand-in for a Schema Registry."""

import asyncio
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import SerializationError

from sendlater import Backoff, Handlers, Record, SerializerCodec, Unavailable

SCHEMA = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Reminder",
        "type": "object",
        "properties": {"order": {"type": "integer"}},
        "required": ["order"],
    }
)
TOPIC = "orders.reminder"


@dataclass
class Reminder:
    order: int


@pytest.fixture
def registry():
    return SchemaRegistryClient.new_client({"url": "mock://"})


def codec_of(registry, **conf):
    return SerializerCodec(
        JSONSerializer(SCHEMA, registry, to_dict=lambda one, _: asdict(one), conf=conf or None),
        JSONDeserializer(
            None, from_dict=lambda one, _: Reminder(**one), schema_registry_client=registry
        ),
    )


def handled(fake, codec, *, first=lambda: None):
    """What a handler of TOPIC got for Reminder(17), and for what others put on its topic."""
    app, seen = Handlers(fake), []

    @app.on(TOPIC, codec=codec, retry=Backoff(min_s=60, retries=2))
    async def remind(event: Reminder):
        seen.append(event)

    async def story():
        async with app:
            await remind.enqueue(Reminder(17), delay="1h")
            first()
            await fake.run("2h")

    asyncio.run(story())
    return seen


def test_a_serializer_and_a_deserializer_work_unchanged(sendlater_fake, registry):
    assert handled(sendlater_fake, codec_of(registry)) == [Reminder(17)]
    (record,) = sendlater_fake.delivered(TOPIC)
    assert record.value[:1] == b"\0"  # Confluent's wire format: magic byte and schema id
    assert json.loads(record.value[5:]) == {"order": 17}
    assert registry.get_subjects() == [f"{TOPIC}-value"]


def test_what_a_serializer_writes_into_headers_arrives(sendlater_fake, registry):
    """The schema's id can be in a header: the codec sees them on both sides."""
    conf = {"auto.register.schemas": True, "schema.id.serializer": header_schema_id_serializer}
    assert handled(sendlater_fake, codec_of(registry, **conf)) == [Reminder(17)]
    (record,) = sendlater_fake.delivered(TOPIC)
    assert json.loads(record.value) == {"order": 17}
    assert record.header("__value_schema_id")


def test_what_has_another_form_is_refused_when_it_is_enqueued(sendlater_fake, registry):
    app = Handlers(sendlater_fake)
    app.on(TOPIC, codec=codec_of(registry))(lambda event: None)
    with pytest.raises(SerializationError):
        asyncio.run(app.enqueue(TOPIC, Reminder("seventeen")))


def test_what_cannot_be_read_is_dead_and_what_cannot_be_read_now_is_retried(
    sendlater_fake, registry
):
    codec = codec_of(registry)
    read, away = codec.decode, [True]

    def decode(data, hint, *, topic, headers):
        if away and data.startswith(b"\0"):
            away.clear()
            raise Unavailable("the registry is away")
        return read(data, hint, topic=topic, headers=headers)

    codec.decode = decode
    alien = Record(topic=TOPIC, value=b"alien")
    seen = handled(sendlater_fake, codec, first=lambda: sendlater_fake.produce(alien))
    assert seen == [Reminder(17)]
    (dead,) = sendlater_fake.delivered("dead-letters")
    assert (dead.value, dead.header("event-type")) == (b"alien", TOPIC.encode())
    first, again = (r for r in sendlater_fake.delivered(TOPIC) if r.value != b"alien")
    assert again.timestamp_ms - first.timestamp_ms == 60_000


class Answer(Exception):
    """As SchemaRegistryError: with the status of an answer."""

    def __init__(self, status):
        super().__init__(f"HTTP {status}")
        self.http_status_code = status


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionError("refused"), Unavailable),
        (Answer(503), Unavailable),
        (Answer(404), Answer),
        (SerializationError("bad"), SerializationError),
    ],
)
def test_an_outage_of_the_registry_is_no_error_of_the_event(error, expected):
    def deserialize(data, context):
        raise error

    with pytest.raises(expected):
        SerializerCodec(None, deserialize).decode(b"", None, topic="t", headers=[])


def test_the_example_of_the_page_runs():
    page = Path(__file__).parents[2] / "docs" / "handlers.md"
    (code,) = re.findall(
        r"^```python\n(from confluent_kafka.*?)^```", page.read_text(), re.M | re.S
    )
    said = {}
    exec(compile(code, "example", "exec"), said)
    headers = []
    sent = said["reminders"].encode({"order": 17}, topic=TOPIC, headers=headers)
    assert said["reminders"].decode(sent, None, topic=TOPIC, headers=headers) == {"order": 17}
