"""Why rows were not taken.

All are `Rejected`: the rows are wrong as they stand, and nothing of their batch was stored. Each
has the place in attributes, for programs, and in its message, for people.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lowmark.errors import Rejected
from lowmark.formatting import shown


class ValueRefused(Rejected):
    """A value that its column can't hold without losing something.

    `row` is counted from 0 over all that was given in one call; `value` is the value's `repr`.
    """

    def __init__(
        self,
        why: str,
        *,
        row: int,
        column: str,
        value: object,
        within: tuple[str, ...] = (),
        hint: str = "",
    ) -> None:
        self.row = row
        self.column = column
        self.value = shown(value)
        self.why = why
        self.within = within
        place = ", ".join((f"row {row}", f"column {column}", *within))
        super().__init__(f"{place}: {self.value} {why}", hint=hint)


class LineRefused(Rejected):
    """A line of a file that can't become a row; `column` and `value` are there if one is to blame.

    `line` is counted from 1, as editors do; it is where the row begins.
    """

    def __init__(
        self,
        why: str,
        *,
        file: str,
        line: int,
        column: str | None = None,
        value: str | None = None,
        within: tuple[str, ...] = (),
        hint: str = "",
    ) -> None:
        self.file = file
        self.line = line
        self.column = column
        self.value = value
        places = [file, f"line {line}", *([f"column {column}"] if column else []), *within]
        what = why if value is None else f"{value} {why}"
        super().__init__(f"{', '.join(places)}: {what}", hint=hint)


class ColumnRefused(Rejected):
    """A column that the table does not have, or that it needs and did not get.

    `row` is the first row that has it, where rows have columns of their own, as dicts do.
    """

    def __init__(
        self, message: str, *, column: str, row: int | None = None, hint: str = ""
    ) -> None:
        super().__init__(message if row is None else f"row {row}: {message}", hint=hint)
        self.what = message
        self.column = column
        self.row = row


def in_file(error: Rejected, file: str) -> Rejected:
    """The same error, which says in which file."""
    fresh = error.again()
    fresh.message = f"{file}, {error.message}"
    fresh.args = (fresh.message,)
    return fresh


def near(wrong: str, known: Iterable[str], *, of: str = "The table has") -> str:
    """A hint: the name that was probably meant, or all of them."""
    names = list(known)
    folded = {name.casefold(): name for name in names}
    found = difflib.get_close_matches(wrong.casefold(), folded, n=1)
    if found:
        return f"Did you mean {folded[found[0]]}?"
    some = ", ".join(names[:20])
    return f"{of} {some}{'' if len(names) <= 20 else ' and others'}."
