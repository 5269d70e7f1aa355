"""The client's transport over REST (format: docs/rest.md)."""

import json
import ssl
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2

from sendlater.client.rest_json import from_json, standing_of, to_arrived, to_json
from sendlater.clock import SystemClock
from sendlater.errors import BadRequest, BadSettings, ConditionFailed, Unavailable
from sendlater.limits import BULK_IDS_MAX
from sendlater.model import Cancelled, Moved, Paused, Schedule
from sendlater.operations.arguments import chunks, id_text, to_datetime
from sendlater.operations.queries import Query
from sendlater.operations.transport import Done, Matched

if TYPE_CHECKING:
    from sendlater.brokers.broker import Arrived

TIMEOUT_S = 45.0
"""Longest wait for a response: longer than the server waits for intake."""
CONNECTIONS_MAX = 32
MANY_COUNT = 500
"""Schedules in one request of `send_many`."""
TRY_AGAIN = (408, 425, 429)
"""Statuses that mean "try again", as all from 500 on do; the request is not wrong."""
AWAY = HTTPStatus.SERVICE_UNAVAILABLE
PATH = "/v1/schedules"
RECORDS = "/v1/records"
UNKNOWN = "unknown"
"""What the server answers of an id that it knows nothing of: all else that is not found is an
error, such as a wrong address."""
STEPS = (b".", b"..")
FOLLOW_WAIT_S = 5
"""How long one request waits for the next record of a topic."""


class HttpTransport:
    """See Transport. The server checks requests; one that it refuses raises BadRequest."""

    def __init__(self, url: str, *, token: str | None, ca_file: "str | Path | None" = None) -> None:
        """`ca_file`: the certificates (PEM) to trust in place of the system's. Raises
        BadSettings."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        limits = httpx2.Limits(max_connections=CONNECTIONS_MAX)
        try:
            self._client = httpx2.Client(
                base_url=url,
                headers=headers,
                timeout=TIMEOUT_S,
                limits=limits,
                verify=True if ca_file is None else _trusting(ca_file),
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise BadSettings(f"expected an http:// address, got {url!r}: {error}") from error

    def send(self, schedule: Schedule, *, done: Done) -> None:
        """See Transport. Waits for the response."""
        self._call("POST", PATH, json=to_json(schedule))
        done(None)

    def create(self, schedule: Schedule, *, only_if: str) -> Schedule:
        """See Transport."""
        told = self._call("POST", PATH, json={**to_json(schedule), "only_if": only_if})
        return replace(schedule, version=told.get("version", ""))

    def send_many(self, schedules: Iterable[Schedule]) -> int:
        """See Transport."""
        count = 0
        for chunk in chunks(schedules, count_max=MANY_COUNT):
            lines = b"".join(json.dumps(to_json(one)).encode() + b"\n" for one in chunk)
            answer = self._call(
                "POST", PATH, content=lines, headers={"Content-Type": "application/x-ndjson"}
            )
            refused = answer.get("refused") or []
            if refused:
                away = [one for one in refused if one.get("status") == AWAY]
                first = (away or refused)[0]
                told = f"{len(refused)} refused, the first: {first.get('detail', first)}"
                raise Unavailable(told) if away else BadRequest(told)
            count += len(chunk)
        return count

    def now_ms(self) -> int:
        """See Transport: the clock of this host."""
        return SystemClock().now_ms()

    def ready(self) -> bool:
        """See Transport."""
        return False

    def cancel(self, schedule_id: bytes) -> Cancelled:
        """See Transport."""
        answer = self._call("DELETE", _path(schedule_id))
        return Cancelled(answer["answer"])

    def cancel_many(self, ids: Sequence[bytes]) -> list[Cancelled]:
        """See Transport. One request each: the answer to many only counts."""
        return [self.cancel(one) for one in ids]

    def cancel_matching(self, query: Query, *, dry_run: bool) -> Matched:
        """See Transport."""
        wanted = _asked(query) or {"all": True}
        told = self._call("POST", f"{PATH}:cancel", json={**wanted, "dry_run": dry_run})
        later = told.get("later", 0)
        return Matched(told["matched"], told["changed"], told["audit_id"], later)

    def forget(self, schedule_id: bytes) -> None:
        """See Transport."""
        self.cancel(schedule_id)

    def reschedule(self, schedule_id: bytes, *, due_ms: int) -> Moved:
        """See Transport."""
        answer = self._call("PATCH", _path(schedule_id), json={"due_ms": due_ms})
        return Moved(answer["answer"])

    def deliver_now(self, schedule_id: bytes) -> Moved:
        """See Transport."""
        answer = self._call("POST", _path(schedule_id, ":deliver-now"))
        return Moved(answer["answer"])

    def pause(self, schedule_id: bytes) -> Paused:
        """See Transport."""
        answer = self._call("POST", _path(schedule_id, ":pause"))
        return Paused(answer["answer"])

    def resume(self, schedule_id: bytes) -> Paused:
        """See Transport."""
        answer = self._call("POST", _path(schedule_id, ":resume"))
        return Paused(answer["answer"])

    def trigger(self, schedule_id: bytes) -> Schedule | None:
        """See Transport."""
        told = self._call("POST", _path(schedule_id, ":trigger"))
        return from_json(told["schedule"]) if "schedule" in told else None

    def get(self, schedule_id: bytes) -> Schedule | None:
        """See Transport."""
        found = self._call("GET", _path(schedule_id))
        return None if found.get("answer") == UNKNOWN else from_json(found)

    def page(self, query: Query) -> tuple[list[Schedule], str | None]:
        """See Transport."""
        asked = _asked(query) | {"limit": query.limit}
        if query.cursor is not None:
            asked["cursor"] = query.cursor
        found = self._call("GET", PATH, params=asked)
        return [from_json(item) for item in found["items"]], found.get("next_cursor")

    def stats(self) -> dict[str, Any]:
        """The server's statistics, as in GET /v1/stats."""
        return self._call("GET", "/v1/stats")

    def last_records(self, topic: str | None, *, count_max: int) -> list["Arrived"]:
        """The last records of a topic by time, oldest first. None means the rejected topic."""
        asked = {"limit": count_max} | ({} if topic is None else {"topic": topic})
        found = self._call("GET", RECORDS, params=asked)["items"]
        return [to_arrived(told) for told in reversed(found)]

    def coming_records(self, topic: str, *, from_start: bool) -> Iterator[list["Arrived"]]:
        """New records, or all from the first one kept, without end; also yields empty lists."""
        asked: dict[str, Any] = {"topic": topic, "wait": FOLLOW_WAIT_S, "from_start": from_start}
        while True:
            told = self._call("GET", f"{RECORDS}:follow", params=asked)
            yield [to_arrived(one) for one in told["items"]]
            asked["cursor"] = told["cursor"]

    def redrive(self, topic: str, places: Sequence[str]) -> dict[str, str]:
        """Schedule records of a topic again. Returns the places that were skipped, and why."""
        skipped: dict[str, str] = {}
        for first in range(0, len(places), BULK_IDS_MAX):
            asked = {"topic": topic, "places": places[first : first + BULK_IDS_MAX]}
            answer = self._call("POST", f"{RECORDS}:redrive", json=asked)
            skipped |= {one["place"]: one["detail"] for one in answer["skipped"]}
        return skipped

    def flush(self) -> None:
        """See Transport. Nothing to do: each call waits for its response."""

    def close(self) -> None:
        """See Transport."""
        self._client.close()

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        """The JSON object in the response, also that there is no such schedule. Raises BadRequest,
        ConditionFailed or Unavailable with the server's message."""
        try:
            answer = self._client.request(method, path, **arguments)
        except httpx2.HTTPError as error:
            where = self._client.base_url
            raise Unavailable(
                f"{where} does not answer: {error or type(error).__name__}"
            ) from error
        try:
            told = answer.json()
        except ValueError:
            told = {}
        if not isinstance(told, dict):
            told = {}
        status = answer.status_code
        unknown = status == HTTPStatus.NOT_FOUND and told.get("answer") == UNKNOWN
        if (status < 300 and told) or unknown:
            return told
        words = told.get("detail") or told.get("title") or answer.reason_phrase
        if status == HTTPStatus.PRECONDITION_FAILED:
            raise ConditionFailed(words, standing=standing_of(told.get("standing")))
        kind = Unavailable if status >= 500 or status in TRY_AGAIN else BadRequest
        raise kind(f"{method} {path.split('?')[0]}: {status} {words}")


def _trusting(ca_file: "str | Path") -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # so are errors of ssl
        raise BadSettings(f"ca_file: expected certificates (PEM) in {ca_file}: {error}") from error


def _asked(query: Query) -> dict[str, Any]:
    """The fields of a filter that select less than everything."""
    due_to = None if query.due_to_ms is None else to_datetime(query.due_to_ms).isoformat()
    asked = {
        "due_from": to_datetime(query.due_from_ms).isoformat() if query.due_from_ms else None,
        "due_to": due_to,
        "id_prefix": id_text(query.id_prefix) or None,
        "topic": query.topic or None,
        "tag": query.tag,
        "caller": query.caller or None,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _path(schedule_id: bytes, verb: str = "") -> str:
    """Of a schedule; `.` and `..` would be taken for steps of the path (RFC 3986, 5.2.4)."""
    told = quote(schedule_id, safe="")
    return f"{PATH}/{verb}?id={told}" if schedule_id in STEPS else f"{PATH}/{told}{verb}"
