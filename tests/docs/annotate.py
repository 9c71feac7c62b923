"""Writes the examples in docs/formats/ anew: `python tests/docs/annotate.py`.

A dump is made of a file that the log wrote and of the layout tables on its page, a line per field.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.example_catalog import catalog_examples, show_catalog
from docs.example_directory import example_files
from docs.example_group import ITEMS, SHAPES, Shape, group_examples, shape_of_head
from docs.example_metastore import metastore_examples, metastore_shapes
from docs.example_table import show_table, table_examples
from docs.pages import FORMATS, blocks, layouts
from lowmark.log import snapshot_format
from lowmark.raft import Append
from lowmark.runtime import HybridTime
from lowmark.runtime.frames import frame_header, hello

__all__ = ["HYBRID_TIME", "example_bytes", "rendered", "rewrite"]

HYBRID_TIME = HybridTime(1_735_689_600_000 << 16 | 3)
_BYTES_PER_LINE = 16
_IN_HEX = ("checksum", "place")


def example_bytes() -> dict[str, bytes]:
    """Everything that a page may show, by the name in its block."""
    frame = b"o-1 paid"
    return {
        **example_files(),
        **group_examples(),
        **catalog_examples(),
        **metastore_examples(),
        **table_examples(),
        "a hybrid time": HYBRID_TIME.to_bytes(8, "little"),
        "a connection": hello("n1:7400") + frame_header([frame]) + frame,
    }


class _Dump:
    """Walks over bytes and says, line by line, what they are."""

    def __init__(self, page: str, data: bytes) -> None:
        self._layouts = layouts(page)
        self.data = data
        self.at = 0
        self.lines: list[str] = []

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def remark(self, text: str) -> None:
        self.lines.append(f"# {text}")

    def fields(self, heading: str) -> dict[str, int]:
        """Show a structure; give its numbers by name."""
        values = {}
        for field in self._layouts[heading]:
            values[field.name] = self.number(field.size, field.name)
        return values

    def number(self, size: int, name: str) -> int:
        taken = self.data[self.at : self.at + size]
        value = int.from_bytes(taken, "little")
        if name == "spare":
            said = name
        elif name == "magic":
            said = f'{name} = "{taken.decode()}"'
        elif name.endswith(_IN_HEX):
            said = f"{name} = {value:#0{2 * size + 2}x}"
        else:
            said = name if size > 8 else f"{name} = {value}"
        self._line(taken, said)
        return value

    def msgpack(self, shape: Shape) -> None:
        """Show a MessagePack value. One of more than a byte is big-endian, and said by a colon."""
        name, parts = shape if isinstance(shape, tuple) else (shape, None)
        first = self.data[self.at]
        if first < 0x80:
            self.number(1, name)
        elif 0x90 <= first < 0xA0 or first == 0xDC:
            long = first == 0xDC
            count = int.from_bytes(self.data[self.at + 1 : self.at + 3]) if long else first - 0x90
            self.show(3 if long else 1, f"{name}: array of {count}")
            for at in range(count):
                self.msgpack(name if parts is None else parts[at])
        elif 0xA0 <= first < 0xC0:
            self.show(1, f"{name}: text of {first - 0xA0}")
            self.rest(first - 0xA0, name)
        elif first == 0xC0:
            self.show(1, f"{name}: nil")
        elif first in {0xC2, 0xC3}:
            self.show(1, f"{name}: {'false' if first == 0xC2 else 'true'}")
        elif first == 0xC4:
            size = self.data[self.at + 1]
            self.show(2, f"{name}: {size} bytes")
            self.rest(size, name)
        elif 0xCC <= first <= 0xCF:
            size = 1 << first - 0xCC
            value = int.from_bytes(self.data[self.at + 1 : self.at + 1 + size], "big")
            self.show(1 + size, f"{name}: {value}")
        else:
            assert first >= 0xE0, f"{first:#x} is in no example"
            self.show(1, f"{name}: {first - 0x100}")

    def show(self, size: int, said: str) -> None:
        """Show bytes with whatever is to be said of them."""
        self._line(self.data[self.at : self.at + size], said)

    def rest(self, size: int, name: str) -> None:
        """Show bytes that have no structure here; text is shown as such."""
        for start in range(0, size, _BYTES_PER_LINE):
            taken = self.data[self.at : self.at + min(_BYTES_PER_LINE, size - start)]
            is_text = taken.isascii() and taken.decode("latin-1").isprintable()
            self._line(taken, f'{name} = "{taken.decode()}"' if is_text else name)

    def _line(self, taken: bytes, said: str) -> None:
        width = 3 * _BYTES_PER_LINE - 1
        self.lines.append(f"{self.at:04x}  {taken.hex(' '):{width}}  {said}")
        self.at += len(taken)


def _wal(dump: _Dump) -> None:
    dump.remark("file header")
    dump.fields("File header")
    while dump.left:
        began = dump.at
        dump.remark("batch head")
        head = dump.fields("Batch head")
        rows = []
        for _ in range(head["records"]):
            dump.remark("record row")
            rows.append(dump.fields("Record row"))
        for row in rows:
            dump.remark(f"body of kind {row['kind']}")
            _wal_body(dump, row)
        dump.rest(-(dump.at - began) % 8, "padding")


def _wal_body(dump: _Dump, row: dict[str, int]) -> None:
    end = dump.at + row["body_bytes"]
    match row["kind"]:
        case 1:
            dump.rest(16, "incarnation")
            dump.rest(end - dump.at, "name")
        case 2:
            lengths = [dump.number(4, "length") for _ in range(row["entries"])]
            for _ in lengths:
                dump.number(4, "checksum")
            for length in lengths:
                dump.rest(length, "data")
        case 3:
            dump.fields("Large body")
        case _:
            dump.rest(end - dump.at, "meta")


def _segment(dump: _Dump) -> None:
    dump.remark("header")
    header = dump.fields("Header")
    lengths = []
    for _ in range(header["entries"]):
        dump.remark("row")
        row = dump.fields("Row")
        if not row["place"] >> 63:
            lengths.append(row["length"])
    dump.remark("data")
    for length in lengths:
        dump.rest(length, "data")
    dump.remark("trailer")
    while dump.left > 16:
        dump.number(8, "member")
    dump.fields("Trailer end")


def _large(dump: _Dump) -> None:
    dump.remark("header")
    dump.fields("Header")
    while dump.left:
        dump.remark("frame")
        length = dump.fields("Frame head")["length"]
        dump.rest(length, "data")
        dump.rest(-length % 8, "padding")


def _state(dump: _Dump) -> None:
    dump.remark("state head")
    head = dump.fields("State head")
    dump.remark("meta, MessagePack")
    dump.rest(head["meta_bytes"], "meta")
    dump.remark("state")
    dump.rest(dump.left - snapshot_format.TRAILER_BYTES, "state")
    dump.remark("state trailer")
    dump.fields("State trailer")


def _live(dump: _Dump) -> None:
    dump.remark("live head")
    dump.fields("Live head")
    dump.remark("live set: one part, whose upper bits are 0")
    dump.number(8, "parts")
    dump.number(4, "upper")
    dump.remark("its 32-bit bitmap: one container with three values")
    dump.number(4, "cookie")
    dump.number(4, "containers")
    dump.number(2, "key")
    dump.number(2, "values_less_one")
    dump.number(4, "container_at")
    while dump.left:
        dump.number(2, "value")


def _connection(dump: _Dump) -> None:
    dump.remark("hello")
    dump.rest(dump.fields("Hello head")["address_bytes"], "address")
    while dump.left:
        dump.remark("frame")
        dump.rest(dump.fields("Frame header")["length"], "bytes")


def _messages(dump: _Dump) -> None:
    dump.remark("start")
    dump.fields("Start")
    dump.remark("head, MessagePack")
    dump.msgpack(shape_of_head())
    dump.remark("data")
    for _, item in ITEMS:
        for entry in item.entries if isinstance(item, Append) else ():
            dump.rest(len(entry.data), f"data of {entry.index}")


def _entry(dump: _Dump, name: str) -> None:
    match name:
        case "an entry of kind 1":
            dump.fields("Command")
            dump.rest(dump.left, "command")
        case "an entry of kind 4":
            dump.fields("Copy")
            dump.remark("the old entry")
            dump.fields("Command")
            dump.rest(dump.left, "command")
        case "an entry of kind 5":
            dump.fields("Version")
        case _:
            if name.startswith("an entry of kind"):
                dump.number(1, "kind")
            dump.msgpack(SHAPES[name])


def _metastore(dump: _Dump, name: str) -> None:
    for shape in metastore_shapes()[name]:
        dump.fields("Block head" if name.startswith("a snapshot") else "Start")
        dump.msgpack(shape)
    if dump.left:
        dump.rest(dump.left, "values")


def rendered(page: str, name: str) -> str:
    """The dump of an example, as it stands on its page."""
    dump = _Dump(page, example_bytes()[name])
    match page, name.rpartition("/")[2]:
        case "wal.md", _:
            _wal(dump)
        case "segment.md", _:
            _segment(dump)
        case "large.md", _:
            _large(dump)
        case "snapshot.md", "state":
            _state(dump)
        case "snapshot.md", _:
            _live(dump)
        case "frames.md", _:
            _connection(dump)
        case "messages.md", _:
            _messages(dump)
        case "entries.md", _:
            _entry(dump, name)
        case "metastore.md", _:
            _metastore(dump, name)
        case "catalog.md", _:
            show_catalog(dump)
        case "table.md", _:
            show_table(dump, name)
        case _:
            dump.fields("Hybrid time")
    assert dump.left == 0
    return "".join(f"{line}\n" for line in dump.lines)


def _fresh(page: str) -> Iterator[tuple[str, str]]:
    for block in blocks(page):
        old = f"```{block.language} {block.info}\n{block.text}```"
        if block.language == "hex":
            yield old, f"```hex {block.info}\n{rendered(page, block.info)}```"
        elif block.info in example_bytes():
            text = example_bytes()[block.info].decode()
            yield old, f"```{block.language} {block.info}\n{text}```"


def rewrite() -> None:
    """Put fresh examples into every page."""
    for path in sorted(FORMATS.glob("*.md")):
        text = path.read_text()
        for old, new in _fresh(path.name):
            text = text.replace(old, new)
        path.write_text(re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE))


if __name__ == "__main__":
    rewrite()
