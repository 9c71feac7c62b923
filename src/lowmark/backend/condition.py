"""A condition on rows as SQL writes it, as an Arrow expression: for `where`, in Python as on the
command line.

    status = 'new'
    amount >= 9.50 and (status in ('new', 'paid') or note is null)
    not flag = true and _offset < 1000

Comparisons of a column with a value, `in`, `is null`, joined by `and`, `or`, `not` and parentheses:
no more. A value is read as the type of its column says, as a key is; text stands in single quotes,
where a quote is written twice. A name that is no word stands in backticks or double quotes. What
is none of this is refused; nothing of it is ever run as code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lowmark.catalog import ColumnType, Plain, type_text
from lowmark.catalog.arrow import from_arrow
from lowmark.convert.text import from_text
from lowmark.convert.values import Misfit
from lowmark.errors import Rejected
from lowmark.table import CHANGE, OFFSET, PARTITION, TIME

DEPTH_MAX = 100
"""How deep parentheses and `not`s may stand inside each other."""
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<quoted>`(?:[^`]|``)+`|"(?:[^"]|"")+")
      | (?P<number>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)
      | (?P<word>[^\W\d]\w*)
      | (?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
_COMPARES: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "=": lambda left, right: left == right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<>": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
_SYSTEM: dict[str, ColumnType] = {
    PARTITION: Plain.INT32,
    OFFSET: Plain.INT64,
    TIME: Plain.INT64,
    CHANGE: Plain.STRING,
}
_HINT = "Write it as SQL does: \"status = 'new' and amount > 5\"."


class ConditionRefused(Rejected):
    """A condition that can't be read, or that names what the table does not have."""


class _Token(NamedTuple):
    kind: str
    text: str


def parse_where(text: str, schema: pa.Schema) -> pc.Expression:
    """The condition on rows with these columns, system columns among them; or a refusal that says
    where it ends.
    """
    parser = _Parser(text, schema)
    found = parser.any_of(0)
    if parser.token is not None:
        raise parser.refused(f"unexpected {parser.token.text} after the condition")
    return found


class _Parser:
    """Goes through the tokens, one at a time."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        self._tokens = self._split()
        self._at = 0

    def refused(self, what: str) -> ConditionRefused:
        """Says what is wrong with it."""
        return ConditionRefused(f"where can't be read: {what}", detail=self._text, hint=_HINT)

    def _split(self) -> list[_Token]:
        tokens, at, text = [], 0, self._text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise self.refused(
                    f"what begins with {text[at:].strip()[:20]!r} is not part of a condition"
                )
            tokens.append(_Token(found.lastgroup, found[found.lastgroup]))
            at = found.end()
        return tokens

    @property
    def token(self) -> _Token | None:
        """The next one."""
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _takes(self, *words: str) -> bool:
        """Whether these come next, and if so, go past them."""
        some = self._tokens[self._at : self._at + len(words)]
        same = [
            one.kind in {"word", "sign"} and one.text.lower() == word
            for one, word in zip(some, words, strict=False)
        ]
        if len(some) < len(words) or not all(same):
            return False
        self._at += len(words)
        return True

    def _must(self, word: str) -> None:
        if not self._takes(word):
            found = "its end" if self.token is None else self.token.text
            raise self.refused(f"expected {word}, found {found}")

    # -- conditions -----------------------------------------------------------------------------

    def any_of(self, depth: int) -> pc.Expression:
        """Conditions with `or` between them."""
        found = self._all_of(depth)
        while self._takes("or"):
            found = found | self._all_of(depth)
        return found

    def _all_of(self, depth: int) -> pc.Expression:
        found = self._one(depth)
        while self._takes("and"):
            found = found & self._one(depth)
        return found

    def _one(self, depth: int) -> pc.Expression:
        if depth == DEPTH_MAX:
            raise self.refused(f"its conditions are nested more than {DEPTH_MAX} deep")
        if self._takes("not"):
            return ~self._one(depth + 1)
        if self._takes("("):
            found = self.any_of(depth + 1)
            self._must(")")
            return found
        return self._compared()

    def _compared(self) -> pc.Expression:
        name, kind = self._column()
        column = pc.field(name)
        if self._takes("is", "not", "null"):
            return ~column.is_null()
        if self._takes("is", "null"):
            return column.is_null()
        if self._takes("not", "in"):
            return ~self._among(name, kind)
        if self._takes("in"):
            return self._among(name, kind)
        token = self.token
        if token is None or token.text not in _COMPARES:
            raise self.refused(f"expected a comparison after {name}")
        self._at += 1
        return _COMPARES[token.text](column, pc.scalar(self._value(name, kind)))

    def _among(self, name: str, kind: ColumnType) -> pc.Expression:
        self._must("(")
        values = [self._value(name, kind)]
        while self._takes(","):
            values.append(self._value(name, kind))
        self._must(")")
        any_of = pc.field(name) == pc.scalar(values[0])
        for value in values[1:]:
            any_of = any_of | (pc.field(name) == pc.scalar(value))
        return any_of

    def _column(self) -> tuple[str, ColumnType]:
        token = self.token
        if token is None:
            raise self.refused("expected a column, found its end")
        if token.kind not in {"word", "quoted"}:
            raise self.refused(f"expected a column, found {token.text}")
        self._at += 1
        name = token.text
        if token.kind == "quoted":
            name = name[1:-1].replace(name[0] * 2, name[0])
        if name in _SYSTEM:
            return name, _SYSTEM[name]
        if name not in self._schema.names:
            known = ", ".join([*self._schema.names, *_SYSTEM])
            raise ConditionRefused(
                f"where names column {name}, which the table does not have", hint=f"Use {known}."
            )
        return name, from_arrow(self._schema.field(name).type)

    def _value(self, name: str, kind: ColumnType) -> pa.Scalar:
        token = self.token
        if token is None:
            raise self.refused("expected a value, found its end")
        self._at += 1
        match token.kind:
            case "text":
                text = token.text[1:-1].replace("''", "'")
            case "number":
                text = token.text.removeprefix("+")
            case "word" if token.text.lower() in {"true", "false"}:
                text = token.text.lower()
            case _:
                raise self.refused(f"expected a value, found {token.text}")
        try:
            return from_text(kind, pa.array([text], pa.string()))[0]
        except (Misfit, UnicodeEncodeError) as error:
            why = error.why if isinstance(error, Misfit) else "is not text"
            raise ConditionRefused(
                f"where: {text!r} can't be a value of column {name}: it {why}",
                hint=f"Give a value of type {type_text(kind)}.",
            ) from error
