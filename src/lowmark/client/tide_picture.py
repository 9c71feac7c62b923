"""Draws a table's tide. The only file that knows matplotlib; it is loaded when a picture is asked
for, and needs no display.

Each partition is a band, its offsets from left to right. Its upper lane is the ledger, filled as
high as rows are left of what was written there. The lower lane is the backlog, coloured by why it
is kept. The line through both is the low watermark, and the marks below are those who read.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lowmark.client.tide import HolderTotal, PartitionTide, TideHolder
from lowmark.formatting import counted

_INCHES: Final = 16
"""As wide as it is drawn, whatever its pixels: all words grow with it."""
_BANDS_MAX: Final = 16
"""More partitions could not be told apart: those with the largest backlogs are shown."""
_NAMED_BAND_PT: Final = 60.0
"""A band that is so high has room for names at its marks."""
_LINE_PT: Final = 13.0
"""What a line of words takes, and a mark."""
_LINES_MAX: Final = 3
"""Of marks below a band."""
_NAME_MAX: Final = 24
_MORE_LETTERS: Final = 12
"""Of the words that say how many more stand there."""
_AXES: Final = (0.085, 0.245, 0.765, 0.6)
_WORDS_WIDE: Final = 125
"""This many letters of the usual size are as wide as the picture."""

_INK, _FAINT, _PAPER = "#16222e", "#65727e", "#ffffff"
_WRITTEN, _LIVE, _EDGE = "#dbe9f2", "#1f6f9f", "#0f4c70"
_KEPT, _NEXT, _YOUNG, _ALL = "#f2a33a", "#58b09c", "#b9c4cd", "#58b09c"
_GONE = "#eef1f4"
_WATERMARK = "#c8323c"
_MARKS = ("v", "D", "s", "o", "P", "X")
_MARK_COLOURS = ("#7a1fa2", "#00695c", "#ad1457", "#283593", "#5d4037", "#37474f")

_LEDGER = (0.05, 0.37)
"""Where a band's upper lane is, and how high: the band's own place is 0."""
_BACKLOG = (-0.14, 0.17)
_MARKS_END = -0.55
"""Marks stand between the backlog and this, each with its name if there is room."""


class Drawable(Protocol):
    """A tide, as far as it is drawn."""

    @property
    def table(self) -> str: ...
    @property
    def at(self) -> str: ...
    @property
    def watermark(self) -> str: ...
    @property
    def compacts(self) -> bool: ...
    @property
    def kept_because(self) -> str: ...
    @property
    def partitions(self) -> tuple[PartitionTide, ...]: ...
    @property
    def changes(self) -> int: ...
    @property
    def backlog_rows(self) -> int: ...
    @property
    def backlog_bytes(self) -> int: ...
    @property
    def kept_bytes(self) -> int: ...
    @property
    def ledger_bytes(self) -> int: ...
    @property
    def ledger_rows(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Room:
    """What fits below a band."""

    named: bool
    """Whether marks have names."""
    lines: int
    first: float
    """Where the first line is; the band is 1."""
    step: float
    """From a line to the next one."""


def _room(figure: Figure, bands: int) -> _Room:
    band_pt = figure.get_figheight() * 72 * _AXES[3] / bands
    if band_pt < _NAMED_BAND_PT:
        return _Room(named=False, lines=1, first=-0.21, step=0.0)
    step = _LINE_PT / band_pt
    lines = min(_LINES_MAX, int((_BACKLOG[0] - _MARKS_END) / step))
    return _Room(named=True, lines=max(1, lines), first=_BACKLOG[0] - step / 2, step=step)


def png_of(tide: Drawable, *, holders: Sequence[HolderTotal], width: int, height: int) -> bytes:
    """A picture of this many pixels."""
    dots = width / _INCHES
    figure = Figure(figsize=(_INCHES, height / dots), dpi=dots, facecolor=_PAPER)
    FigureCanvasAgg(figure)  # becomes the figure's canvas: no display is asked for
    axes = figure.add_axes(_AXES)
    _frame(axes, tide, shown := _shown(tide.partitions))
    looks, room = _looks(holders), _room(figure, len(shown))
    for place, partition in enumerate(shown):
        _band(axes, -place, partition, tide, looks, room)
    _titles(figure, tide, holders, hidden=len(tide.partitions) - len(shown))
    _legend(figure, tide, holders, looks)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=dots)
    return data.getvalue()


def _shown(partitions: Sequence[PartitionTide]) -> list[PartitionTide]:
    if len(partitions) <= _BANDS_MAX:
        return list(partitions)
    most = sorted(partitions, key=lambda one: (-one.backlog_bytes, one.partition))[:_BANDS_MAX]
    return sorted(most, key=lambda one: one.partition)


# -- around the bands -----------------------------------------------------------------------------


def _frame(axes: Axes, tide: Drawable, shown: Sequence[PartitionTide]) -> None:
    axes.set_xlim(0, max(1, *(one.end for one in shown)) * 1.004)
    axes.set_ylim(-len(shown) + 0.40, 0.60)
    axes.set_yticks([-place for place in range(len(shown))])
    axes.set_yticklabels([f"partition {one.partition}" for one in shown])
    axes.tick_params(axis="y", length=0, pad=11, labelsize=12, labelcolor=_INK)
    axes.tick_params(axis="x", labelsize=11, color=_FAINT, labelcolor=_FAINT)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("offset: the number of a change in its partition", fontsize=12, color=_FAINT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)


def _titles(figure: Figure, tide: Drawable, holders: Sequence[HolderTotal], *, hidden: int) -> None:
    figure.text(
        0.02, 0.945, f"The tide of {_plain(tide.table)}", fontsize=25, weight="bold", color=_INK
    )
    when = tide.at.replace("T", " ").removesuffix("Z").partition(".")[0]
    figure.text(0.98, 0.95, f"{when} UTC", fontsize=13, color=_FAINT, ha="right")
    words = f"{counted(tide.changes, 'change')} so far."
    if tide.compacts:
        words += f"   Ledger: {counted(tide.ledger_rows, 'row')}, {_size(tide.ledger_bytes)}."
    words += f"   Backlog: {counted(tide.backlog_rows, 'row')}, {_size(tide.backlog_bytes)}"
    keeps = [one.name for one in holders if one.keeps_bytes]
    if tide.kept_bytes and keeps:
        words += f", of which {_size(tide.kept_bytes)} only for {_plain(keeps[0])}"
        words += f" and {len(keeps) - 1} more" if keeps[1:] else ""
    size = 15 * min(1.0, _WORDS_WIDE / len(words))
    figure.text(0.02, 0.895, f"{words}.", fontsize=size, color=_INK)
    since = tide.watermark.replace("T", " ").removesuffix("Z")
    mark = f"Low watermark: {since} UTC." if since else "The low watermark was never moved."
    more = (
        f"   Not shown: {counted(hidden, 'partition')} with smaller backlogs." if hidden > 0 else ""
    )
    figure.text(0.02, 0.857, mark + more, fontsize=12, color=_FAINT)


def _legend(
    figure: Figure,
    tide: Drawable,
    holders: Sequence[HolderTotal],
    looks: Mapping[tuple[str, str], tuple[str, str]],
) -> None:
    places: list[Patch | Line2D] = []
    if tide.compacts:
        places += [
            Patch(color=_LIVE, label="ledger: live rows, as a share of what was written"),
            Patch(color=_WRITTEN, label="ledger: replaced or deleted since, and gone"),
            Patch(color=_KEPT, label="backlog: in the ledger, too; kept for a reader"),
            Patch(color=_NEXT, label="backlog: the next compaction takes it"),
            Patch(color=_YOUNG, label="backlog: later than the watermark, so it stays"),
            Line2D([], [], color=_EDGE, linewidth=2, label="horizon: the ledger ends here"),
        ]
    else:
        places += [
            Patch(color=_ALL, label=f"backlog. {tide.kept_because}"),
            Patch(color=_GONE, label="gone by retention"),
        ]
    places.append(
        Line2D(
            [],
            [],
            color=_WATERMARK,
            linewidth=2.2,
            label="low watermark: history is exact from here on",
        )
    )
    _plain_legend(figure, places, at=0.015, columns=2)
    _plain_legend(figure, _readers(holders, looks), at=0.625, columns=1)


def _plain_legend(
    figure: Figure, places: Sequence[Patch | Line2D], *, at: float, columns: int
) -> None:
    if places:
        legend = figure.legend(
            handles=list(places),
            loc="upper left",
            bbox_to_anchor=(at, 0.175),
            fontsize=11,
            ncols=columns,
            labelspacing=0.55,
            columnspacing=1.2,
        )
        legend.get_frame().set_linewidth(0)


def _readers(
    holders: Sequence[HolderTotal], looks: Mapping[tuple[str, str], tuple[str, str]]
) -> list[Line2D]:
    """What each mark is; those who keep little share the last one."""
    alone = len(_MARKS) if len(holders) <= len(_MARKS) else len(_MARKS) - 1
    places = [_mark(looks[one.kind, one.name], _reader_words(one)) for one in holders[:alone]]
    if rest := holders[alone:]:
        furthest = max(one.behind_rows for one in rest)
        words = f"{len(rest)} others: up to {counted(furthest, 'row')} behind"
        places.append(_mark(looks[rest[0].kind, rest[0].name], words))
    return places


def _reader_words(holder: HolderTotal) -> str:
    kind = "" if holder.kind == "cursor" else f" ({holder.kind})"
    keeps = f", keeps {_size(holder.keeps_bytes)}" if holder.keeps_bytes else ""
    late = ", overdue: holds nothing" if holder.overdue else ""
    return f"{_plain(holder.name)}{kind}: {counted(holder.behind_rows, 'row')} behind{keeps}{late}"


def _mark(look: tuple[str, str], words: str) -> Line2D:
    mark, colour = look
    return Line2D([], [], linestyle="none", marker=mark, color=colour, markersize=9, label=words)


def _looks(holders: Sequence[HolderTotal]) -> dict[tuple[str, str], tuple[str, str]]:
    """A mark and a colour for each; those who keep little share the last one."""
    last = len(_MARKS) - 1
    return {
        (one.kind, one.name): (_MARKS[min(at, last)], _MARK_COLOURS[min(at, last)])
        for at, one in enumerate(holders)
    }


# -- a band ---------------------------------------------------------------------------------------


def _band(
    axes: Axes,
    y: int,
    partition: PartitionTide,
    tide: Drawable,
    looks: Mapping[tuple[str, str], tuple[str, str]],
    room: _Room,
) -> None:
    one = partition
    if one.ledger is not None and one.horizon:
        _ledger_lane(axes, y, one, named=room.named)
    gone = one.start if one.ledger is None else 0
    _box(axes, 0, gone, y, _BACKLOG, _GONE)
    _cut_line(axes, y, one, named=room.named)
    if tide.compacts:
        _box(axes, one.start, min(one.horizon, one.end), y, _BACKLOG, _KEPT)
        _box(axes, max(one.horizon, one.start), one.watermark, y, _BACKLOG, _NEXT)
        _box(axes, one.watermark, one.end, y, _BACKLOG, _YOUNG)
    else:
        _box(axes, one.start, one.end, y, _BACKLOG, _ALL)
    if tide.watermark:
        low, high = y + _BACKLOG[0] - 0.02, y + sum(_LEDGER) + 0.04
        axes.plot([one.watermark] * 2, [low, high], color=_WATERMARK, linewidth=2.2, zorder=4)
    if room.named and not y:
        _names_above(axes, one, tide)
    _words_beside(axes, y, one, named=room.named)
    _marks(axes, y, one, looks, room)


def _names_above(axes: Axes, one: PartitionTide, tide: Drawable) -> None:
    """What the two lines of the first band are."""
    above = sum(_LEDGER) + 0.1
    if one.horizon:
        axes.annotate(
            "horizon",
            (one.horizon, above),
            xytext=(-4, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=11,
            color=_EDGE,
        )
    if tide.watermark:
        _write_at(axes, one.watermark, above, "low watermark", _WATERMARK)


def _cut_line(axes: Axes, y: int, one: PartitionTide, *, named: bool) -> None:
    """Where there was a backlog once."""
    middle = y + _BACKLOG[0] + _BACKLOG[1] / 2
    axes.plot([0, one.start], [middle] * 2, color="#cfd8df", linewidth=1, zorder=0)
    if named and one.ledger is not None and one.start > axes.get_xlim()[1] * 0.2:
        _write_at(axes, 0, middle, "backlog: cut up to here", _FAINT, background=_PAPER)


def _write_at(
    axes: Axes, x: float, y: float, words: str, colour: str, *, background: str | None = None
) -> None:
    box = None if background is None else {"facecolor": background, "linewidth": 0, "pad": 1.5}
    axes.annotate(
        words,
        (x, y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=10.5,
        color=colour,
        bbox=box,
        zorder=5,
    )


def _ledger_lane(axes: Axes, y: int, one: PartitionTide, *, named: bool) -> None:
    ledger = one.ledger
    assert ledger is not None
    low, high = _LEDGER
    _box(axes, 0, one.horizon, y, _LEDGER, _WRITTEN)
    share = np.array(ledger.shares(one.horizon, len(ledger.survivors) or 1))
    edges = np.linspace(0, one.horizon, len(share) + 1)
    base = y + low
    axes.stairs(base + high * share, edges, baseline=base, fill=True, color=_LIVE, zorder=2)
    axes.plot([one.horizon] * 2, [base, base + high], color=_EDGE, linewidth=2, zorder=3)
    if named:
        axes.annotate(
            f"ledger: {one.live_share:.0%} live",
            (0, base + high),
            xytext=(6, -3),
            textcoords="offset points",
            va="top",
            fontsize=10.5,
            color=_EDGE,
            # However many rows are left there, it can be read.
            bbox={"facecolor": _WRITTEN, "linewidth": 0, "pad": 1},
            zorder=5,
        )


def _box(axes: Axes, left: int, right: int, y: int, lane: tuple[float, float], colour: str) -> None:
    if right > left:
        low, high = lane
        # A line of its own colour: however little it is, it is seen.
        axes.add_patch(
            Rectangle(
                (left, y + low), right - left, high, facecolor=colour, edgecolor=colour, linewidth=1
            )
        )


def _words_beside(axes: Axes, y: int, one: PartitionTide, *, named: bool) -> None:
    lines = [counted(one.end, "change")] if named else []
    if named and one.ledger is not None:
        lines.append(f"ledger {_size(one.ledger.bytes)}")
        lines += [f"  {counted(one.ledger.deletes, 'delete')}"] if one.ledger.deletes else []
    lines.append(f"backlog {_size(one.backlog_bytes)}")
    axes.annotate(
        "\n".join(lines),
        (1, y),
        xycoords=("axes fraction", "data"),
        xytext=(10, 0),
        textcoords="offset points",
        va="center",
        fontsize=11,
        linespacing=1.35,
        color=_FAINT,
    )


def _marks(
    axes: Axes,
    y: int,
    one: PartitionTide,
    looks: Mapping[tuple[str, str], tuple[str, str]],
    room: _Room,
) -> None:
    span = axes.get_xlim()[1]
    for placed in _placed(one.holders, span, room):
        holder = placed.holder
        mark, colour = looks[holder.kind, holder.name]
        place = y + room.first - placed.line * room.step
        x, top = holder.offset, y + sum(_BACKLOG)
        axes.plot([x, x], [top, place], color=colour, linewidth=1, alpha=0.5, zorder=5)
        axes.plot([x], [place], marker=mark, color=colour, markersize=8, zorder=6, clip_on=False)
        if room.named:
            left = _leans_left(holder, span)
            more = f" and {placed.more} more" if placed.more else ""
            axes.annotate(
                _name_beside(holder) + more,
                (holder.offset, place),
                xytext=(-9 if left else 9, -0.5),
                textcoords="offset points",
                ha="right" if left else "left",
                va="center",
                fontsize=10.5,
                color=colour,
                bbox={"facecolor": _PAPER, "linewidth": 0, "pad": 0, "alpha": 0.85},
                zorder=7,
            )


def _name_beside(holder: TideHolder) -> str:
    keeps = f" keeps {_size(holder.keeps_bytes)}" if holder.keeps_bytes else ""
    return f"{_plain(holder.name)}{keeps}"


def _leans_left(holder: TideHolder, span: float) -> bool:
    return holder.offset > span / 2


@dataclass(slots=True)
class _Placed:
    """A holder that has a mark of its own."""

    holder: TideHolder
    line: int
    left: float
    right: float
    more: int = 0
    """This many others would stand at its place."""

    def touches(self, left: float, right: float) -> bool:
        return self.left <= right and left <= self.right

    def count_in(self, words: float, *, leans_left: bool) -> None:
        """One more, which its words will say."""
        if not self.more:
            self.left -= words if leans_left else 0
            self.right += 0 if leans_left else words
        self.more += 1


def _placed(holders: Sequence[TideHolder], span: float, room: _Room) -> list[_Placed]:
    """On which line each stands, so that nothing lies on another; those without room are counted
    where they would have been.
    """
    placed: list[_Placed] = []
    for holder in sorted(holders, key=lambda one: (-one.keeps_bytes, one.offset)):
        mark, words = span / 120, 0.0
        if room.named:
            words = (len(_name_beside(holder)) + 3) * span / 165
        leans_left = _leans_left(holder, span)
        left = holder.offset - (words if leans_left else 0) - mark
        right = holder.offset + (0 if leans_left else words) + mark
        for line in range(room.lines):
            there = [one for one in placed if one.line == line and one.touches(left, right)]
            if not there:
                placed.append(_Placed(holder, line, left, right))
                break
            if line == room.lines - 1:
                there[0].count_in(_MORE_LETTERS * span / 165, leans_left=leans_left)
    return placed


def _plain(name: str) -> str:
    """A name as it is, and not as a formula; a long one is cut."""
    short = name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…"
    return short.replace("$", r"\$")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{count} B"
