"""What a task yields reaches the JVM at once, although Arrow writes it in small pieces."""

import io

import pyarrow as pa
import pytest

from sendlater.spark import pipe, work_name
from sendlater.spark.delivery.warm_rows import CHUNKS, warm_rows


def test_a_worker_is_called_by_what_it_does(tmp_path, monkeypatch):
    monkeypatch.setattr(work_name, "_NAME", tmp_path / "comm")
    work_name.name_work("sl-lane-1234567890")
    assert (tmp_path / "comm").read_text() == "sl-lane-1234567"
    monkeypatch.setattr(work_name, "_NAME", tmp_path / "of" / "another" / "system")
    work_name.name_work("sl-park")


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Each write that arrives at the other end of the pipe."""
    written: list[bytes] = []

    class End(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, piece) -> int:
            written.append(bytes(piece))
            return len(piece)

    monkeypatch.setattr(pipe, "_pipe", None)
    pipe.use_pipe(io.BufferedWriter(End(), pipe.PIPE_BYTES))
    return written


def test_each_chunk_is_one_write(jvm):
    writer = None
    for number, batch in enumerate(warm_rows(sent=True)):
        assert len(jvm) == number // 2
        writer = writer or pa.RecordBatchStreamWriter(pipe._pipe, batch.schema)
        writer.write_batch(batch)
    assert len(jvm) == CHUNKS
    rows = [batch.num_rows for batch in pa.ipc.open_stream(b"".join(jvm))]
    assert all(rows[::2])
    assert not any(rows[1::2])


def test_a_worker_of_spark_has_nothing_to_pass_on(monkeypatch):
    monkeypatch.setattr(pipe, "_pipe", None)
    pipe.pass_on()
