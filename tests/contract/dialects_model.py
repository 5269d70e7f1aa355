"""What the dialects must do, again in plain Python: the model Spark SQL is held against."""

import json
import re
import zlib
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil

from sendlater.config import Inbox, Settings
from sendlater.dialects import names, share_of
from sendlater.model import DUE_MS_MAX, Reason

READ_MS = 1_780_000_000_123
SETTINGS = Settings(
    inboxes=(
        Inbox(topic="schedules", dialect="headers"),
        Inbox(topic="envelopes", dialect="envelope"),
    ),
    max_payload_bytes=1_000,
    max_delay_days=3_660,
    shards=3,
)
COLUMNS = [
    *("id", "due_ms", "topic", "partition", "key", "value", "headers", "dialect"),
    *("expires_ms", "expires_after_ms", "tags"),
    *("origin_topic", "origin_partition", "origin_position", "origin_timestamp_ms", "shard"),
    "change",
]
GIVEN = (*COLUMNS[:7], "expires_ms", "expires_after_ms", "tags")
"""What the sender of a record decides."""


def first(headers, name):
    return next((value for key, value in headers if key == name), None)


def as_text(value):
    return None if value is None else value.decode("utf-8", "replace")


def exact_ms(amount, seconds):
    """Rounded up, from 18 decimal places; what is finer does not count."""
    places = Fraction(int(Fraction(amount) * 10**18 + Fraction(1, 2)), 10**18)
    return ceil(places * seconds * 1000)


LENGTHS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1, "ms": Fraction(1, 1000)}
FORMS = ("P(W)", "P(D)", "P(D)?T(H)?(M)?(S)?", "(d)?(h)?(m)?(s)?(ms)?")


def model_duration(text):
    number = r"\d{1,40}(?:\.\d{1,40})?"
    if re.fullmatch(number, text, re.ASCII):
        return exact_ms(text, 1)
    for form in FORMS:
        units = re.findall(r"\((\w+)\)", form)
        pattern = form.replace("(", f"(?:({number})")
        m = None if text.endswith("T") else re.fullmatch(pattern, text, re.ASCII)
        amounts = [(a, u) for a, u in zip(m.groups(), units, strict=True) if a] if m else []
        if amounts and all("." not in a for a, _ in amounts[:-1]):
            return sum(exact_ms(a, LENGTHS[u.lower()]) for a, u in amounts)
    return None


def model_instant(text):
    m = re.fullmatch(
        r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,40}))?([zZ]|[+-]\d\d:\d\d)",
        text,
        re.ASCII,
    )
    try:
        at = datetime.fromisoformat(f"{m[1]}T{m[2]}{m[4].upper()}")
    except (TypeError, ValueError):
        return None
    if at.utcoffset() is None or abs(at.utcoffset()) >= timedelta(hours=18):
        return None
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return int(since.total_seconds()) * 1000 + ceil(Fraction(f"0.{m[3] or 0}") * 1000)


def model_due(headers):
    """(due_ms or None, reason or None) of a headers record."""
    present = {name for name, _ in headers}
    name = next((n for n in names.TIMES if n in present), None)
    if name is None:
        return None, Reason.NO_TIME
    text = as_text(first(headers, name)) or ""
    number = int(text) if re.fullmatch(r"\+?\d{1,40}", text, re.ASCII) else None
    due_ms = {
        names.DUE_MS: lambda: number,
        names.EPOCH: lambda: None if number is None else number * 1000,
        names.AT: lambda: model_instant(text),
        names.DELAY: lambda: None if (delay := model_duration(text)) is None else READ_MS + delay,
    }[name]()
    if due_ms is None or due_ms < 0:
        return None, Reason.BAD_TIME
    if name == names.EPOCH and number >= 10**11:
        return None, Reason.MILLISECONDS
    return due_ms, None


def model_expiry(headers, due_ms):
    """(expires_ms, expires_after_ms) of a headers record, or a reason."""
    present = {name for name, _ in headers}
    name = next((n for n in names.EXPIRIES if n in present), None)
    if name is None:
        return None, None
    text = as_text(first(headers, name)) or ""
    if name == names.EXPIRES_AFTER:
        after_ms = model_duration(text)
        return Reason.BAD_EXPIRY if after_ms is None else (None, min(after_ms, DUE_MS_MAX))
    number = int(text) if re.fullmatch(r"\+?\d{1,40}", text, re.ASCII) else None
    at_ms = model_instant(text) if number is None else number
    # A copy of a change was moved there, a retry is only tried again.
    least_ms = 0 if present & {names.CHANGE, names.RETRY_ATTEMPT} else due_ms
    if at_ms is None or not least_ms <= at_ms <= DUE_MS_MAX:
        return Reason.BAD_EXPIRY
    return at_ms, None


def model_tags(headers):
    """The tags with commas between them, None without any, or a reason."""
    if all(name != names.TAGS for name, _ in headers):
        return None
    found = [tag.strip(" ") for tag in (as_text(first(headers, names.TAGS)) or "").split(",")]
    good = all(re.fullmatch("[0-9A-Za-z._:/@=+-]{1,64}", tag, re.ASCII) for tag in found)
    return ",".join(dict.fromkeys(found)) if good and len(found) <= 8 else Reason.BAD_TAGS


def model_condition(record):
    """The condition of a record, None without one, or a reason."""
    if record.topic != "schedules" or all(name != names.IF for name, _ in record.headers):
        return None
    text = as_text(first(record.headers, names.IF)) or ""
    known = re.fullmatch("absent|earlier|later|once|version=[0-9A-Za-z-]{1,64}", text, re.ASCII)
    return text if known and record.value is not None else Reason.BAD_CONDITION


def refuse_constant(text):
    raise ValueError(text)


def model_envelope(value):
    """(topic, body, countdown text) or None; numbers as they were written."""
    try:
        parsed = json.loads(
            value.decode(), parse_constant=refuse_constant, parse_float=Literal, parse_int=Literal
        )
        if not isinstance(parsed, dict) or "message" not in parsed:
            return None
        for part in parsed.values():
            str(part).encode()
        message = parsed["message"]
        body = message.encode() if type(message) is str else dumps(message).encode()
    except (ValueError, AttributeError):
        return None
    topic, countdown = (
        None if parsed.get(n) is None else text_of(parsed[n]) for n in ("topic", "countdown")
    )
    return topic, body, countdown


class Literal(str):
    """A JSON number by its text."""


def dumps(value):
    if isinstance(value, Literal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{dumps(k)}:{dumps(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumps, value)) + "]"
    text = json.dumps(value, ensure_ascii=False)
    # Jackson escapes characters beyond U+FFFF in pairs, and writes hexadecimal digits in capitals.
    text = re.sub("[\U00010000-\U0010ffff]", lambda m: json.dumps(m[0])[1:-1], text)
    return re.sub(r"\\(?:u([0-9a-f]{4})|.)", lambda m: "\\u" + m[1].upper() if m[1] else m[0], text)


def text_of(value):
    return str(value) if isinstance(value, str) else dumps(value)


def model_countdown(text):
    if not re.fullmatch(r"\d{1,40}(\.\d{1,40})?([eE][+-]?\d{1,3})?", text, re.ASCII):
        return None
    return READ_MS + exact_ms(text, 1)


def model(record, place):
    """What must come out: a Reason, or (id, due_ms, topic, partition, key, value, headers,
    expires_ms, expires_after_ms, tags)."""
    headers, partition, expiry = record.headers, None, (None, None)
    if record.topic == "schedules":
        id, value, key = record.key, record.value, first(headers, names.TARGET_KEY)
        if model_condition(record) is Reason.BAD_CONDITION:
            return Reason.BAD_CONDITION
        if id is None or not id.strip():
            return Reason.NO_ID
        if len(id) > 512:
            return Reason.ID_TOO_LONG
        if value is None:
            return id, *[None] * 9
        due_ms, reason = model_due(headers)
        target = as_text(first(headers, names.TARGET_TOPIC))
        if any(name == names.TARGET_PARTITION for name, _ in headers):
            partition = as_text(first(headers, names.TARGET_PARTITION)) or ""
        dropped = names.CONTROL
    else:
        id, key, dropped = f"envelopes-1-{place}".encode(), record.key, (*names.STALE, names.TAGS)
        read = model_envelope(record.value) if record.value is not None else None
        if read is None:
            return Reason.BAD_ENVELOPE
        target, value, countdown = read
        due_ms = None if countdown is None else model_countdown(countdown)
        reason = None
        if due_ms is None:
            reason = Reason.NO_TIME if countdown is None else Reason.BAD_TIME
    if reason:
        return reason
    if record.topic == "schedules" and any(name == names.SPREAD for name, _ in headers):
        spread_ms = model_duration(as_text(first(headers, names.SPREAD)) or "")
        if spread_ms is None:
            return Reason.BAD_TIME
        due_ms += share_of(min(spread_ms, DUE_MS_MAX), id)
    if due_ms > READ_MS + SETTINGS.max_delay_days * 86_400_000:
        return Reason.TOO_FAR
    if record.topic == "schedules":
        expiry = model_expiry(headers, due_ms)
        if isinstance(expiry, Reason):
            return expiry
    tags = model_tags(headers)
    if isinstance(tags, Reason):
        return tags
    if not target:
        return Reason.NO_TARGET
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", target) or target in (".", ".."):
        return Reason.BAD_TARGET
    if partition is not None:
        if not re.fullmatch("[0-9]{1,10}", partition) or int(partition) >= 2**31:
            return Reason.BAD_TARGET
        partition = int(partition)
    size = len(record.value) + len(record.key or b"")
    size += sum(len(k.encode()) + len(v or b"") for k, v in headers)
    is_copy = record.topic == "schedules" and any(name == names.CHANGE for name, _ in headers)
    if size > SETTINGS.max_payload_bytes and not is_copy:
        return Reason.TOO_LARGE
    kept = [(k, v) for k, v in headers if k not in dropped]
    return id, due_ms, target, partition, key, value, kept or None, *expiry, tags


def check(record, place, row):
    """`row` is what the model says of `record`, whole."""
    expected = model(record, place)
    origin = [row[c] for c in COLUMNS if c.startswith("origin_")]
    assert origin == [record.topic, 1, place, READ_MS], record
    assert row["shard"] == zlib.crc32(row["id"]) % 3
    got = tuple(row[c] for c in COLUMNS if c in GIVEN)
    if not isinstance(expected, Reason):
        assert row["dialect"] == {"schedules": "headers"}.get(record.topic, "envelope"), record
        assert got == expected, record
        condition = model_condition(record)
        assert not condition or row["change"] == f"if {condition}", record
        return
    assert not (row["change"] or "").startswith("if "), record
    assert row["dialect"] == "rejected", (record, expected)
    *original, reason, detail, where, when = row["headers"]
    assert reason == (names.REJECTED, expected.value.encode()), (record, detail)
    assert original == record.headers
    assert where == (names.ORIGIN, f"{record.topic}/1/{place}".encode())
    assert when == (names.ORIGIN_TIMESTAMP_MS, str(READ_MS).encode())
    assert detail[0] == names.REJECTED_DETAIL
    assert re.fullmatch("expected .+, got .+", detail[1].decode(), re.DOTALL), detail
    assert len(detail[1].decode()) < 400
    id = f"{record.topic}-1-{place}".encode()
    assert got[:6] == (id, READ_MS, "rejected", None, record.key, record.value)
