"""Why rows were not taken.

All are `Rejected`: the rows are wrong as they stand, and nothing of their batch was stored. Each
has the place in attributes, for programs, and in its message, for people.
"""

from __future__ import annotations

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

    def at_line(self, line: int, *, file: str) -> LineRefused:
        """The same of a file, where the row begins at this line."""
        return LineRefused(
            self.why,
            file=file,
            line=line,
            column=self.column,
            value="null" if self.value == "None" else self.value,
            within=self.within,
            hint=self.hint,
        )


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
