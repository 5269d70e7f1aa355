"""What is added to a record on delivery, as Spark SQL text."""

from sendlater.dialects import names, sql


def delivered_headers() -> str:
    """The headers a delivered record carries, an expression of type array<struct<key, value>>.

    Over columns id, due_ms, headers (may be null), dialect, origin_topic, origin_timestamp_ms:
    the user's headers, in dialect `headers` S1's three, then `sendlater-id` and `sendlater-due`.
    On the hot path: no lambda, so that Spark compiles it.
    """
    seconds = "(origin_timestamp_ms - pmod(origin_timestamp_ms, 1000)) DIV 1000"
    s1 = (
        sql.pair(names.SCHEDULER_TIMESTAMP, sql.decimal_text(seconds)),
        sql.pair(names.SCHEDULER_KEY, "id"),
        sql.pair(names.SCHEDULER_TOPIC, "origin_topic"),
    )
    ours = (sql.pair(names.ID, "id"), sql.pair(names.DUE, sql.decimal_text("due_ms")))
    return (
        f"concat(coalesce(headers, array()), CASE dialect WHEN 'headers' "
        f"THEN array({', '.join(s1 + ours)}) ELSE array({', '.join(ours)}) END)"
    )
