"""One partition of an export, in a task of Spark's: the task opens the database by itself.

Spark reads and writes nothing here. Its own writer would give other files than an export in one
process does (times in a form of their own, no ids of columns), and these three formats need the
same ones.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec
import pyarrow as pa

from lowmark.client.exporting import ExportWork, done_path
from lowmark.export import not_shared, write_files
from lowmark.frames.opening import opened
from lowmark.frames.options import Options


def export_part(data: bytes) -> bytes:
    """Write the files of one partition; answers with what they are.

    A task may run twice, even at once: each writes under names of its own.
    """
    work = msgspec.msgpack.decode(data, type=ExportWork)
    options = Options.read({work.by: work.database, "table": work.table})
    prefix = f"part-{work.partition:05}-{secrets.token_hex(4)}"
    with (
        opened(options) as database,
        database.table(work.table, as_of=work.time).read(
            as_of=work.time,
            columns=work.columns,
            partitions=[work.partition],
            on_gap=work.on_gap,
        ) as reader,
    ):
        if not os.path.isdir(work.folder):
            raise not_shared(work.path)
        schema = pa.ipc.read_schema(pa.py_buffer(work.schema))
        files = write_files(reader, schema, work.folder, prefix)
        # For the process that waits: it counts these.
        Path(done_path(work.folder, work.partition)).touch()
    return msgspec.msgpack.encode(files)
