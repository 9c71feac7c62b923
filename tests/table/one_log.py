"""A partition's machine, with its log in one variable: for tests of what commands do."""

from __future__ import annotations

import pyarrow as pa

from lowmark.table import PartitionMachine, encode_batch, encode_control, encode_rows
from lowmark.table.commands import Control

__all__ = ["Log", "is_a"]


def message(rows: int) -> memoryview:
    return memoryview(encode_rows(pa.record_batch({"id": list(range(rows))})))


class Log:
    """A machine, and what numbers its entries and stamps them."""

    def __init__(self) -> None:
        self.machine = PartitionMachine()
        self.index = 0
        self.ms = 1_000

    def apply(self, command: bytes) -> object:
        self.index += 1
        self.ms += 1
        return self.machine.apply(self.index, self.ms << 16, command)

    def append(self, rows: int = 1, *, schema: int = 1, **header: object) -> object:
        return self.apply(encode_batch(message(rows), rows=rows, schema=schema, **header))  # type: ignore[arg-type]

    def ask(self, command: Control) -> object:
        return self.apply(encode_control(command))

    def offsets(self) -> tuple[int, int]:
        view = self.machine.state.backlog.view
        return view.start, view.end

    def live(self) -> list[int]:
        return list(self.machine.live_indexes())

    def restart(self, version: int = 1) -> None:
        """Go on from a snapshot."""
        chunks = [bytes(chunk) for chunk in self.machine.snapshot()]
        self.machine = PartitionMachine()
        self.machine.restore(chunks, version)


def is_a(outcome: object, kind: type[object]) -> bool:
    return isinstance(outcome, kind)
