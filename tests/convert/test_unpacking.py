"""Small files that would fill all memory are refused before they are unpacked."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from lowmark.catalog import Column, ColumnId, Plain, TableSchema
from lowmark.convert import files, unpacking
from lowmark.convert.arrow import from_arrow
from lowmark.errors import Rejected
from lowmark.table.unpacking import UNPACKED_BYTES_MAX, unpacked_bytes

BOMB_BYTES = 2_700_000


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of the usual one: it takes a while to make a file that is too large."""
    assert UNPACKED_BYTES_MAX == 256 << 20
    monkeypatch.setattr(unpacking, "UNPACKED_BYTES_MAX", UNPACKED_BYTES_MAX // 100)


def schema_of(kind: Plain) -> TableSchema:
    return TableSchema(number=1, columns=(Column(id=ColumnId(1), name="v", type=kind),))


def read(file: Any, kind: Plain = Plain.BINARY) -> list[pa.RecordBatch]:
    return [one.batch for one in files.read_rows(file, schema=schema_of(kind))]


def bomb() -> pa.RecordBatch:
    """One row of zeros."""
    ends = pa.py_buffer(np.array([0, BOMB_BYTES], np.int32).tobytes())
    zeros = np.zeros(BOMB_BYTES, np.uint8)
    column = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(zeros)])
    return pa.RecordBatch.from_arrays([column], names=["v"])


def encoded(new: Callable[..., Any], batch: pa.RecordBatch, packing: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    with new(sink, batch.schema, options=ipc.IpcWriteOptions(compression=packing)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("packing", ["zstd", "lz4"])
def test_an_arrow_file_that_unpacks_to_too_much_is_refused_unread(
    tmp_path: Path, packing: str
) -> None:
    for new in (ipc.new_file, ipc.new_stream):
        # given a small file, as a file and as a stream, with one large value
        data = encoded(new, bomb(), packing)
        assert len(data) < BOMB_BYTES // 100
        path = tmp_path / new.__name__
        path.write_bytes(data)
        for source in (str(path), io.BytesIO(data)):
            # when it is read, then it is refused by its size
            before = pa.default_memory_pool().max_memory()
            with pytest.raises(Rejected, match=r"too large: a batch unpacks to 2,700,0\d\d bytes"):
                read(source)
            # and was never unpacked
            assert pa.default_memory_pool().max_memory() - before < BOMB_BYTES // 8


@pytest.mark.usefixtures("small_limit")
def test_a_parquet_file_that_unpacks_to_too_much_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    pq.write_table(pa.Table.from_batches([bomb()]), path, compression="zstd", use_dictionary=False)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(Rejected, match=r"column v of row group 0 has .* bytes, which unpack to"):
        read(str(path))
    assert pa.default_memory_pool().max_memory() - before < BOMB_BYTES // 8


@pytest.mark.parametrize("packing", [None, "zstd", "lz4"])
def test_files_of_usual_sizes_are_read_however_they_are_packed(packing: str | None) -> None:
    # given rows with a dictionary, nulls and values that do not compress
    values = [None, b"", b"abc", bytes(range(256))] * 500
    column = pa.array(values, pa.binary()).dictionary_encode()
    batch = pa.RecordBatch.from_arrays([column], names=["v"])
    for new in (ipc.new_file, ipc.new_stream):
        found = read(io.BytesIO(encoded(new, batch, packing)))
        assert [value for one in found for value in one.column(0).to_pylist()] == values


def test_what_a_message_unpacks_to_is_known_without_unpacking_it() -> None:
    for batch in (
        pa.record_batch(
            {"a": pa.array([1, None, 3]), "b": ["x" * 5_000] * 3, "c": [[1], [], None]}
        ),
        pa.record_batch({"a": pa.array([], pa.int64())}),
        pa.record_batch({"a": pa.nulls(5)}),
    ):
        for packing in ("zstd", "lz4"):
            stream = ipc.MessageReader.open_stream(encoded(ipc.new_stream, batch, packing))
            stream.read_next_message()
            size = unpacked_bytes(memoryview(stream.read_next_message().serialize()))
            # then it is what the buffers take, but for what Arrow pads or leaves out
            assert size == pytest.approx(batch.get_total_buffer_size(), abs=64 * 6)
        assert unpacked_bytes(memoryview(batch.serialize())) == 0


def test_half_a_message_and_bytes_that_are_none_are_refused() -> None:
    whole = memoryview(pa.record_batch({"a": [1, 2, 3]}).serialize())
    for broken in (b"", b"abc", bytes(200), b"\xff" * 200, bytes(whole[:40])):
        with pytest.raises(pa.ArrowInvalid):
            unpacked_bytes(memoryview(broken))
    # and a stream of them is refused as one that can't be read
    for broken in (b"\xff\xff\xff\xff" + bytes([200, 0, 0, 0]) + b"\xff" * 200, bytes(whole[:40])):
        with pytest.raises(Rejected, match="can't be read as arrow"):
            read(io.BytesIO(broken), Plain.INT64)


def test_values_that_are_written_once_and_meant_often_are_counted_before_they_are_written_out() -> (
    None
):
    # given a megabyte of text that 2,000 rows mean, by a dictionary or by a run
    text = "x" * (1 << 20)
    dictionary = pa.DictionaryArray.from_arrays(np.zeros(2_000, np.int32), pa.array([text]))
    run = pa.RunEndEncodedArray.from_arrays(pa.array([2_000], pa.int32()), pa.array([text]))
    numbers = pa.RunEndEncodedArray.from_arrays(pa.array([1 << 28], pa.int32()), pa.array([7]))
    for kind, array in ((Plain.STRING, dictionary), (Plain.STRING, run), (Plain.INT64, numbers)):
        # then the column is refused, before it takes two gigabytes
        before = pa.total_allocated_bytes()
        with pytest.raises(Rejected, match=r"has 2,\d+,\d+,\d+ bytes when its values are written"):
            from_arrow(kind, array)
        assert pa.total_allocated_bytes() - before < 1 << 20
    # and one that is within the bound is written out
    some = from_arrow(Plain.STRING, dictionary.slice(0, 3))
    assert some.to_pylist() == [text] * 3


def test_values_that_views_share_are_counted_as_often_as_they_are_meant() -> None:
    # given a megabyte of text that 2,000 views mean, some of which are null
    text = b"x" * (1 << 20)
    view = struct.pack("<i4sii", len(text), text[:4], 0, 0)
    parts = [pa.py_buffer(view * 2_000), pa.py_buffer(text)]
    shared = pa.Array.from_buffers(pa.string_view(), 2_000, [None, *parts])
    # then the column is refused, before it takes two gigabytes, as are a dictionary's values
    before = pa.total_allocated_bytes()
    named = pa.DictionaryArray.from_arrays(np.zeros(1, np.int32), shared)
    for array in (shared, named):
        with pytest.raises(Rejected, match=r"has 2,\d+,\d+,\d+ bytes when its values are written"):
            from_arrow(Plain.STRING, array)
    assert pa.total_allocated_bytes() - before < 1 << 20
    # and a part of it that is within the bound is taken, whatever a null's view says
    few = pa.py_buffer(bytes([0b1000]) + bytes(249))
    nulls = pa.Array.from_buffers(pa.string_view(), 2_000, [few, *parts])
    assert from_arrow(Plain.STRING, nulls.slice(3, 1_500)).null_count == 1_499
    assert from_arrow(Plain.STRING, shared.slice(7, 2)).to_pylist() == [text.decode()] * 2
