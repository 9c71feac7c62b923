"""Draw the README's picture: a partition's backlog and ledger, with its writers and readers.

    .venv/bin/python scripts/picture.py

It writes docs/pictures/overview-light.svg and overview-dark.svg, and needs only Python. A test
compares both with what this draws.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"

KEYS = "abfacdabeadacabead"
"""The key of the row at each offset."""
HORIZON, CURSOR, WATERMARK = 12, 9, 13
"""Up to here the ledger has the rows; the backlog begins here; from here on history is exact."""

WIDTH, HEIGHT = 900, 344
LEFT, CELL = 128, 31
LEDGER, LOG = 96, 170
"""The tops of the two rows of cells."""
END = LEFT + CELL * len(KEYS)
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
CODE = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours. The picture has no ground: it lies on that of the page."""

    text: str
    faint: str
    ledger: str
    log: str


THEMES = {
    "light": Theme(text="#1f2328", faint="#59636e", ledger="#b7e1c6", log="#b6d7f7"),
    "dark": Theme(text="#f0f6fc", faint="#9aa4af", ledger="#2a6a45", log="#1f5a94"),
}


@dataclass(slots=True)
class Drawing:
    """Elements of an SVG, one a line."""

    theme: Theme
    lines: list[str] = field(default_factory=list)

    def element(self, name: str, text: str | None = None, **attributes: object) -> None:
        """One element; `_` in the names of attributes stands for `-`."""
        named = " ".join(
            f"{key.rstrip('_').replace('_', '-')}={quoteattr(str(value))}"
            for key, value in attributes.items()
        )
        end = "/>" if text is None else f">{escape(text)}</{name}>"
        self.lines.append(f"  <{name} {named}{end}")

    def say(
        self, x: int, y: int, text: str, *, anchor: str = "start", code: bool = False, faint: bool
    ) -> None:
        """A line of text."""
        self.element(
            "text",
            text,
            x=x,
            y=y,
            fill=self.theme.faint if faint else self.theme.text,
            text_anchor=anchor,
            font_family=CODE if code else FONT,
            font_size=12 if code else 13,
        )

    def line(self, x1: int, y1: int, x2: int, y2: int, *, dashed: bool = False) -> None:
        """A thin line."""
        dash = {"stroke_dasharray": "3 3"} if dashed else {}
        self.element(
            "line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=self.theme.faint, stroke_width=1.2, **dash
        )

    def arrow(self, x1: int, y1: int, x2: int, y2: int) -> None:
        """A line with a head at its second end; it goes straight along one of the axes."""
        self.line(x1, y1, x2, y2)
        along = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
        back = x2 - 7 * along[0], y2 - 7 * along[1]
        side = 4 * along[1], 4 * along[0]
        corners = [
            (x2, y2),
            (back[0] + side[0], back[1] + side[1]),
            (back[0] - side[0], back[1] - side[1]),
        ]
        points = " ".join(f"{x},{y}" for x, y in corners)
        self.element("polygon", points=points, fill=self.theme.faint)

    def cell(self, offset: int, top: int, fill: str | None) -> None:
        """A row at its offset; one without a colour was cut."""
        x, middle = LEFT + CELL * offset, LEFT + CELL * offset + CELL // 2
        shape = {"fill": "none", "stroke": self.theme.faint, "stroke_dasharray": "2 3"}
        if fill is not None:
            shape = {"fill": fill, "stroke": self.theme.faint}
        self.element("rect", x=x + 2, y=top, width=CELL - 4, height=30, rx=4, **shape)
        self.element(
            "text",
            KEYS[offset],
            x=middle,
            y=top + 20,
            fill=self.theme.text if fill is not None else self.theme.faint,
            text_anchor="middle",
            font_family=CODE,
            font_size=14,
        )

    def svg(self) -> str:
        """All of it."""
        says = (
            "A partition of a table. Rows are appended to the backlog; compaction puts the last row"
            " of each key below the horizon into the ledger; a cursor keeps the backlog from its"
            " place on; look-ups, reads and Spark see ledger and backlog as one table."
        )
        shape = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {shape}>',
                f"  <title>{escape(says)}</title>",
                *self.lines,
                "</svg>",
                "",
            ]
        )


def drawn(theme: Theme) -> str:
    """The picture."""
    to = Drawing(theme)
    _rows(to)
    _writers_and_runs(to)
    _readers(to)
    return to.svg()


def _x(offset: int) -> int:
    """Where an offset begins."""
    return LEFT + CELL * offset


def _rows(to: Drawing) -> None:
    last = {key: offset for offset, key in enumerate(KEYS[:HORIZON])}
    for offset in sorted(last.values()):
        to.line(_x(offset) + CELL // 2, LEDGER + 31, _x(offset) + CELL // 2, LOG, dashed=True)
        to.cell(offset, LEDGER, to.theme.ledger)
    for offset in range(len(KEYS)):
        to.cell(offset, LOG, to.theme.log if offset >= CURSOR else None)
    for top, name, what in (
        (LEDGER, "ledger", "Parquet files"),
        (LOG, "backlog", "log of changes"),
    ):
        to.say(LEFT - 14, top + 13, name, anchor="end", faint=False)
        to.say(LEFT - 14, top + 29, what, anchor="end", faint=True)
    to.say(LEFT + 2, LOG + 48, "cut: no reader needs these any more", faint=True)
    to.line(_x(HORIZON), LEDGER - 10, _x(HORIZON), LOG + 34)
    to.say(_x(HORIZON) + 7, LEDGER + 2, "horizon: up to here the ledger", faint=True)
    to.say(_x(HORIZON) + 7, LEDGER + 18, "has the last row of each key", faint=True)


def _writers_and_runs(to: Drawing) -> None:
    to.say(LEFT, 22, "compaction, on Spark or in your process:", faint=False)
    to.say(LEFT, 39, "the last row of each key stays, in new files", faint=True)
    to.arrow(_x(2) + CELL // 2, 48, _x(2) + CELL // 2, LEDGER - 5)
    to.say(_x(13), 22, "DuckDB, Polars, Spark:", faint=False)
    to.say(_x(13), 39, "read the Parquet files", faint=True)
    to.line(_x(13) - 8, 26, _x(11), 26)
    to.arrow(_x(11), 26, _x(11), LEDGER - 5)
    to.arrow(END + 52, LOG + 15, END + 5, LOG + 15)
    to.say(END + 60, LOG - 10, "new rows:", faint=False)
    to.say(END + 60, LOG + 6, "Python, Spark,", faint=True)
    to.say(END + 60, LOG + 22, "a shell, Flight", faint=True)


def _readers(to: Drawing) -> None:
    foot = LOG + 34
    to.arrow(_x(CURSOR), foot + 22, _x(CURSOR), foot)
    to.say(_x(CURSOR) + 6, foot + 36, "a cursor:", anchor="end", faint=False)
    to.say(
        _x(CURSOR) + 6,
        foot + 52,
        "keeps the backlog from here until its reader has read it",
        anchor="end",
        faint=True,
    )
    to.arrow(_x(WATERMARK), foot + 22, _x(WATERMARK), foot)
    to.say(_x(WATERMARK) - 6, foot + 36, "low watermark:", faint=False)
    to.say(_x(WATERMARK) - 6, foot + 52, "any moment from here on can be read", faint=True)
    to.arrow(END, foot + 22, END, foot)
    to.say(END + 8, foot + 18, "followers, Spark streams", faint=False)
    bottom = HEIGHT - 52
    to.line(LEFT, bottom, END, bottom)
    to.line(LEFT, bottom, LEFT, bottom - 7)
    to.line(END, bottom, END, bottom - 7)
    middle = (LEFT + END) // 2
    to.say(middle, bottom + 22, "ledger and backlog are one table:", anchor="middle", faint=False)
    to.say(
        middle,
        bottom + 40,
        'table.get(key) · table.read(as_of=time) · spark.read.format("lowmark")',
        anchor="middle",
        code=True,
        faint=True,
    )


def pictures() -> dict[Path, str]:
    """What is to be in which file."""
    return {PICTURES / f"overview-{name}.svg": drawn(theme) for name, theme in THEMES.items()}


def main() -> int:
    """Write them."""
    for path, text in pictures().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
