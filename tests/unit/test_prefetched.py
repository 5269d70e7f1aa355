"""What a task holds ahead, next to a model: a dict id -> due_ms."""

from types import SimpleNamespace

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sendlater.spark.delivery.prefetched import Chunk, Prefetched

IDS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.dictionaries(IDS, st.integers(0, 9), min_size=1)),
        st.tuples(st.just("drop"), st.lists(IDS)),
        st.tuples(st.just("ripe"), st.integers(0, 9)),
    )
)


def chunk(rows: dict[bytes, int], *, ready: bool) -> Chunk:
    ids = sorted(rows, key=lambda one: (rows[one], one))
    due_ms = [rows[one] for one in ids]
    columns = [pa.array(ids, pa.binary()), pa.array(due_ms, pa.int64())]
    sent = pa.RecordBatch.from_arrays(columns, ["id", "due_ms"]) if ready else None
    return Chunk(ids, due_ms, [b"t"] * len(ids), SimpleNamespace(), sent)


@given(STEPS, st.booleans())
def test_what_is_ripe_comes_once_and_what_was_recalled_does_not(steps, ready):
    held, model = Prefetched(bytes_max=1), {}
    for step, told in steps:
        if step == "put":
            rows = {one: due for one, due in told.items() if one not in model}
            if rows:
                held.put(chunk(rows, ready=ready))
                model |= rows
        elif step == "drop":
            recalled = [one for one in told if one in model]
            held.drop(recalled)
            model = {one: due for one, due in model.items() if one not in recalled}
        else:
            ripe = list(held.ripe(told))
            for one in ripe if ready else ():
                assert one.sent.column(0).to_pylist() == list(one.ids)
                assert one.sent.column(1).to_pylist() == list(one.due_ms)
            found = [pair for one in ripe for pair in zip(one.ids, one.due_ms, strict=True)]
            due = {one: at for one, at in model.items() if at <= told}
            assert len(found) == len(due)
            assert dict(found) == due
            model = {one: at for one, at in model.items() if at > told}
        assert bool(held) >= bool(model)
        if model:
            assert held.next_ms <= min(model.values())
