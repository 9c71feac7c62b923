"""What the metastore is asked to change, as values and as bytes.

An `Invoke` is a statement: a branch on a condition, or what to do. At most one `Do` of it is
carried out, whole, and makes at most one revision. Values stand behind the head of a command, so
that a value is found again by its place in the log's entry, without decoding anything:

    length of the head (4 bytes, little endian) · head (msgpack) · values, one after another

A condition on a value is equality, and travels as a digest: the machine never reads the log.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable
from enum import IntEnum
from hashlib import blake2b
from typing import TypeAlias

import msgspec

from lowmark.errors import Corrupt
from lowmark.metastore.errors import InvokeRefused
from lowmark.runtime import Buffer

FORMAT = 1
KEY_BYTES_MAX = 1_024
VALUE_BYTES_MAX = 7 << 20
OPERATIONS_MAX = 1_024
"""Operations, and conditions, of one statement in all its branches."""
DEPTH_MAX = 16
"""Branches within branches, and conditions within conditions."""
LEASE_MS_MAX = 7 * 24 * 3_600_000
"""Longer ones would be forgotten about; and a time has to have room for them."""
DIGEST_BYTES = 16
_LENGTH = struct.Struct("<I")


def digest_of(value: Buffer) -> bytes:
    """What the state keeps of a value."""
    return blake2b(value, digest_size=DIGEST_BYTES).digest()


_HOLDS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
"""In the order of the numbers of `Compare`."""


class Compare(IntEnum):
    """How two numbers are compared."""

    EQ = 0
    NE = 1
    LT = 2
    LE = 3
    GT = 4
    GE = 5

    def holds(self, left: int, right: int) -> bool:
        """Whether it is so."""
        return bool(_HOLDS[self](left, right))


class _Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a command."""


# -- conditions ---------------------------------------------------------------------------------


class Exists(_Part, frozen=True, tag=1):
    """The key has a value."""

    key: bytes


class ValueIs(_Part, frozen=True, tag=2):
    """The key has exactly this value."""

    key: bytes
    length: int
    digest: bytes


class Revision(_Part, frozen=True, tag=3):
    """The revision that last changed the key compares so; 0 if it has no value."""

    key: bytes
    compare: Compare
    number: int


class Version(_Part, frozen=True, tag=4):
    """How often the key was written since it was created compares so; 0 if it has no value."""

    key: bytes
    compare: Compare
    number: int


class AllOf(_Part, frozen=True, tag=5):
    """All of these hold; of none, too."""

    conditions: tuple[Condition, ...]


class AnyOf(_Part, frozen=True, tag=6):
    """At least one of these holds."""

    conditions: tuple[Condition, ...]


class Not(_Part, frozen=True, tag=7):
    """This does not hold."""

    condition: Condition


class LeaseIsOver(_Part, frozen=True, tag=8):
    """The lease has run out by the time of this command, was released, or was never taken."""

    name: str


class LeaseEnds(_Part, frozen=True, tag=9):
    """The lease lasts until exactly this time: it was not renewed since. 0: there is none."""

    name: str
    expires_at: int


Condition: TypeAlias = (
    "Exists | ValueIs | Revision | Version | AllOf | AnyOf | Not | LeaseIsOver | LeaseEnds"
)


def missing(key: bytes) -> Condition:
    """The key has no value."""
    return Not(Exists(key))


def value_is(key: bytes, value: bytes) -> Condition:
    """The key has exactly this value."""
    return ValueIs(key, len(value), digest_of(value))


def all_of(*conditions: Condition) -> Condition:
    """All of these hold."""
    return AllOf(conditions)


def any_of(*conditions: Condition) -> Condition:
    """At least one of these holds."""
    return AnyOf(conditions)


# -- statements ---------------------------------------------------------------------------------


class Put(_Part, frozen=True, tag=1):
    """Give a key a value."""

    key: bytes
    value: Buffer


class Remove(_Part, frozen=True, tag=2):
    """Take a key's value away."""

    key: bytes


class RemoveRange(_Part, frozen=True, tag=3):
    """Take the values of all keys from `start` up to, and without, `end` away."""

    start: bytes
    end: bytes


class Do(_Part, frozen=True, tag=1):
    """Do all of this in one revision; `answer` comes back to tell one branch from another."""

    operations: tuple[Operation, ...] = ()
    answer: int = 0


Operation: TypeAlias = Put | Remove | RemoveRange


class Branch(_Part, frozen=True, tag=2):
    """If the condition holds do one thing, else the other."""

    condition: Condition
    then: Statement
    otherwise: Statement


Statement: TypeAlias = "Do | Branch"


# -- commands -----------------------------------------------------------------------------------


class Invoke(_Part, frozen=True, tag=1):
    """Carry a statement out."""

    statement: Statement


class Take(_Part, frozen=True, tag=2):
    """Take a lease; `hold` is the first revision whose changes its holder needs, 0 for none."""

    name: str
    holder: int
    """Its holder has drawn it: no other one can renew or release the lease."""
    ttl_ms: int
    hold: int
    why: str


class Renew(_Part, frozen=True, tag=3):
    """Keep a lease for as long again; `hold` may have moved on."""

    name: str
    holder: int
    hold: int


class Release(_Part, frozen=True, tag=4):
    """Give a lease back."""

    name: str
    holder: int


class Compact(_Part, frozen=True, tag=5):
    """Forget what was superseded at this revision or before, as far as leases allow."""

    revision: int


class Tick(_Part, frozen=True, tag=6):
    """Nothing; but its time says that everything before it is known."""


Command: TypeAlias = Invoke | Take | Renew | Release | Compact | Tick


# -- bytes --------------------------------------------------------------------------------------


class StoredPut(_Part, frozen=True, tag=1):
    """A put as it stands in a command: its value is behind the head."""

    key: bytes
    length: int


class StoredDo(_Part, frozen=True, tag=1):
    """As `Do`."""

    operations: tuple[StoredPut | Remove | RemoveRange, ...] = ()
    answer: int = 0

    @property
    def value_bytes(self) -> int:
        """How much of the value area belongs to it."""
        return sum(put.length for put in self.operations if isinstance(put, StoredPut))


class StoredBranch(_Part, frozen=True, tag=2):
    """As `Branch`; the values of `then` stand before those of `otherwise`."""

    condition: Condition
    then: StoredDo | StoredBranch
    otherwise: StoredDo | StoredBranch

    @property
    def value_bytes(self) -> int:
        """How much of the value area belongs to it."""
        return self.then.value_bytes + self.otherwise.value_bytes


class StoredInvoke(_Part, frozen=True, tag=1):
    """As `Invoke`."""

    statement: StoredDo | StoredBranch


StoredCommand: TypeAlias = StoredInvoke | Take | Renew | Release | Compact | Tick

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, StoredCommand])


class _Values:
    """Puts values one after another behind the head."""

    def __init__(self) -> None:
        self.all: list[Buffer] = []

    def flat(self, statement: Statement) -> StoredDo | StoredBranch:
        if isinstance(statement, Branch):
            then, otherwise = self.flat(statement.then), self.flat(statement.otherwise)
            return StoredBranch(statement.condition, then, otherwise)
        operations: list[StoredPut | Remove | RemoveRange] = []
        for operation in statement.operations:
            if isinstance(operation, Put):
                self.all.append(operation.value)
                operations.append(StoredPut(operation.key, len(operation.value)))
            else:
                operations.append(operation)
        return StoredDo(tuple(operations), statement.answer)


def encode(command: Command) -> bytes:
    """As bytes; raises `InvokeRefused` if it is wrong as it stands."""
    values = _Values()
    flat: StoredCommand
    try:
        if isinstance(command, Invoke):
            flat = StoredInvoke(values.flat(command.statement))
        else:
            flat = command
        _check(flat)
        head = _encoder.encode((FORMAT, flat))
        return b"".join([_LENGTH.pack(len(head)), head, *values.all])
    except (TypeError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise InvokeRefused(
            f"a command can't be written down: {error}",
            hint="Keys and values are bytes, numbers have at most 63 bits.",
        ) from error


def decode(data: Buffer) -> tuple[StoredCommand, int]:
    """A command as it stands in the log, and where its first value begins."""
    view = memoryview(data)
    try:
        (length,) = _LENGTH.unpack_from(view)
        at = _LENGTH.size + length
        number, command = _decoder.decode(view[_LENGTH.size : at])
    except (struct.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"a command of the metastore can't be read: {error}") from error
    if number != FORMAT:
        raise Corrupt(f"a command of the metastore is of format {number}, not {FORMAT}")
    return command, at


# -- checks -------------------------------------------------------------------------------------


def check_key(key: bytes) -> None:
    """Refuse what can't be a key."""
    if type(key) is not bytes or not 0 < len(key) <= KEY_BYTES_MAX:
        raise InvokeRefused(
            f"{key!r:.80} can't be a key", hint=f"A key has 1 to {KEY_BYTES_MAX} bytes."
        )


def check(data: Buffer) -> None:
    """Refuse bytes that another node made, unless they are a command as `encode` makes them."""
    decode_checked(data)


def decode_checked(data: Buffer) -> tuple[StoredCommand, int]:
    """As `decode`; raises `InvokeRefused` for what `encode` would not have made.

    It is a rule of the machine: what was once accepted must always be.
    """
    command, at = decode(data)
    _check(command)
    size = command.statement.value_bytes if isinstance(command, StoredInvoke) else 0
    if at + size != len(data):
        raise InvokeRefused("a command whose values are not as long as it says")
    return command, at


def _check(command: StoredCommand) -> None:
    match command:
        case StoredInvoke(statement=statement):
            count = _check_statement(statement, 1)
            if count > OPERATIONS_MAX:
                raise InvokeRefused(
                    f"a statement with {count} operations and conditions is too large",
                    hint=f"At most {OPERATIONS_MAX} are allowed; split it.",
                )
        case Take(ttl_ms=ttl_ms):
            _check_lease(command.name, command.hold)
            if not 1 <= ttl_ms <= LEASE_MS_MAX or len(command.why.encode()) > KEY_BYTES_MAX:
                raise InvokeRefused(
                    f"a lease lasts 1 to {LEASE_MS_MAX} ms, and says why in {KEY_BYTES_MAX} bytes"
                )
        case Renew():
            _check_lease(command.name, command.hold)
        case Release():
            _check_lease(command.name)
        case Compact() if command.revision < 1:
            raise InvokeRefused("revisions begin with 1")
        case _:
            pass


def _check_lease(name: str, hold: int = 0) -> None:
    if not 0 < len(name.encode()) <= KEY_BYTES_MAX or hold < 0:
        raise InvokeRefused(
            f"a lease's name has 1 to {KEY_BYTES_MAX} bytes, and it holds no negative revision"
        )


def _check_statement(statement: StoredDo | StoredBranch, depth: int) -> int:
    """How many operations and conditions it has."""
    if depth > DEPTH_MAX:
        raise InvokeRefused(f"branches are nested more than {DEPTH_MAX} deep")
    if isinstance(statement, StoredBranch):
        return (
            _check_condition(statement.condition, 1)
            + _check_statement(statement.then, depth + 1)
            + _check_statement(statement.otherwise, depth + 1)
        )
    keys: set[bytes] = set()
    ranges = [one for one in statement.operations if isinstance(one, RemoveRange)]
    for operation in statement.operations:
        if isinstance(operation, RemoveRange):
            check_key(operation.start)
            check_key(operation.end)
            continue
        check_key(operation.key)
        within = ranges and any(one.start <= operation.key < one.end for one in ranges)
        if operation.key in keys or within:
            raise InvokeRefused(
                f"key {operation.key!r:.80} is changed twice",
                detail="All changes of a revision happen at once.",
                hint="Leave one of them out.",
            )
        keys.add(operation.key)
        if isinstance(operation, StoredPut) and not 0 <= operation.length <= VALUE_BYTES_MAX:
            raise InvokeRefused(
                f"a value of {operation.length} bytes is too large",
                hint=f"At most {VALUE_BYTES_MAX} bytes are allowed.",
            )
    return len(statement.operations)


def _check_condition(condition: Condition, depth: int) -> int:
    if depth > DEPTH_MAX:
        raise InvokeRefused(f"conditions are nested more than {DEPTH_MAX} deep")
    match condition:
        case AllOf() | AnyOf():
            return 1 + _check_all(condition.conditions, depth)
        case Not():
            return 1 + _check_condition(condition.condition, depth + 1)
        case LeaseIsOver() | LeaseEnds():
            _check_lease(condition.name)
        case Revision() | Version():
            check_key(condition.key)
            if condition.number < 0:
                raise InvokeRefused("revisions and versions are not negative")
        case Exists():
            check_key(condition.key)
        case ValueIs():
            check_key(condition.key)
            if len(condition.digest) != DIGEST_BYTES or condition.length < 0:
                raise InvokeRefused(f"a value is compared by a digest of {DIGEST_BYTES} bytes")
    return 1


def _check_all(conditions: Iterable[Condition], depth: int) -> int:
    return sum(_check_condition(condition, depth + 1) for condition in conditions)
