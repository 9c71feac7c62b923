"""How a token looks: `lm1_`, 43 digits of base 62 for 256 bits, and 6 for their CRC-32. A pass
begins with `lmp1_`, and is the same else.

Only letters and digits, so that a double click selects all of it; a prefix and a check, so that
scanners of source code find one that was committed, and a typing error is found before anything is
hashed or sent. The 1 is the version of the form.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from binascii import crc32
from typing import Final, NoReturn

from lowmark.tokens.errors import TokenMalformed

PREFIX: Final = "lm1_"
PASS_PREFIX: Final = "lmp1_"
_BYTES: Final = 32
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BODY: Final = 43
_CHECK: Final = 6
_DIGITS_IN_ALL: Final = re.compile(f"[0-9A-Za-z]{{{_BODY + _CHECK}}}")
_OF_A_PASS: Final = b"lowmark pass "


class Secret:
    """A token in this process, which shows itself to no log, error, traceback or `repr`."""

    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        """`token` is checked."""
        check_form(token)
        self._token = token

    def reveal(self) -> str:
        """The token itself: for the header of a call, and for its one print."""
        return self._token

    def digest(self) -> bytes:
        """What the cluster keeps of it."""
        return digest_of(self._token)

    @property
    def is_pass(self) -> bool:
        """Whether it is a pass, and no token."""
        return is_pass(self._token)

    def pass_for(self, what: str) -> Secret:
        """The pass of this token for something: the same each time, so that processes that know
        the token have one pass together without a word. It tells nothing of the token: it is an
        HMAC, of which the token is the key.
        """
        mixed = hmac.digest(self._token.encode(), _OF_A_PASS + what.encode(), "sha256")
        return _made(PASS_PREFIX, int.from_bytes(mixed))

    def __repr__(self) -> str:
        return "Secret(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a token is not pickled: it would be in a file or on a wire, in the open")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and secrets.compare_digest(self._token, other._token)

    def __hash__(self) -> int:
        return hash(self.digest())


def drawn() -> Secret:
    """A new token, by the system's source of secrets."""
    return _made(PREFIX, int.from_bytes(secrets.token_bytes(_BYTES)))


def _made(prefix: str, number: int) -> Secret:
    body = _in_base_62(number, _BODY)
    return Secret(prefix + body + _check(prefix, body))


def is_pass(text: str) -> bool:
    """Whether what was shown means to be a pass."""
    return text.startswith(PASS_PREFIX)


def check_form(text: str) -> None:
    """Refuse what is no token, and say why, but never what it was."""
    prefix = PASS_PREFIX if is_pass(text) else PREFIX
    length = len(prefix) + _BODY + _CHECK
    if not text.startswith(prefix):
        raise TokenMalformed(f"it does not begin with {PREFIX}")
    if len(text) != length:
        raise TokenMalformed(f"it has {len(text)} characters, and not {length}")
    if _DIGITS_IN_ALL.fullmatch(text, len(prefix)) is None:
        raise TokenMalformed("it has other characters than letters and digits")
    body = text[len(prefix) : -_CHECK]
    if not secrets.compare_digest(_check(prefix, body), text[-_CHECK:]):
        raise TokenMalformed("its check is wrong, so it was not copied as it is")


def digest_of(token: str) -> bytes:
    """What is kept of a token. A plain hash is enough: there are 2^256 tokens to try, and a hash
    that is made slow on purpose protects only what people choose. It would cost each call
    milliseconds, and give strangers a way to keep a node busy.
    """
    return hashlib.sha256(token.encode()).digest()


def _check(prefix: str, body: str) -> str:
    return _in_base_62(crc32((prefix + body).encode()), _CHECK)


def _in_base_62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
