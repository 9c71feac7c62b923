"""The form of a token: what is one, what is none, and that it shows itself nowhere."""

from __future__ import annotations

import hashlib
import logging
import pickle
import re
import traceback

import pytest

from lowmark.tokens import Secret, TokenMalformed, check_form, digest_of, drawn, is_pass

SCANNED = re.compile(r"\blm1_[0-9A-Za-z]{49}\b")


def test_a_token_is_found_by_a_scanner_and_no_two_are_alike() -> None:
    tokens = [drawn().reveal() for _ in range(200)]
    assert len(set(tokens)) == 200
    for token in tokens:
        check_form(token)
        assert SCANNED.search(f"password = '{token}'")


def test_a_token_has_256_bits() -> None:
    # the 43 digits of base 62 take every number below 2^256, and each bit is drawn
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    numbers = []
    for _ in range(300):
        number = 0
        for digit in drawn().reveal()[4:47]:
            number = number * 62 + digits.index(digit)
        numbers.append(number)
    assert max(numbers) < 1 << 256
    for bit in range(256):
        assert {number >> bit & 1 for number in numbers} == {0, 1}


def test_a_typing_error_is_found_before_anything_is_hashed() -> None:
    token = drawn().reveal()
    for at in range(4, len(token)):
        other = "x" if token[at] != "x" else "y"
        with pytest.raises(TokenMalformed) as caught:
            check_form(token[:at] + other + token[at + 1 :])
        assert token[4:] not in str(caught.value)
    # two neighbours that were swapped
    at = next(at for at in range(4, 46) if token[at] != token[at + 1])
    with pytest.raises(TokenMalformed, match="check is wrong"):
        check_form(token[:at] + token[at + 1] + token[at] + token[at + 2 :])


@pytest.mark.parametrize(
    "text", ["", "lm1_", "lm2_" + "a" * 49, "lm1_" + "a" * 48, "lm1_" + "ä" * 49, "x" * 100_000]
)
def test_other_text_is_no_token(text: str) -> None:
    with pytest.raises(TokenMalformed) as caught:
        check_form(text)
    assert len(str(caught.value)) < 500
    assert text[:8] not in str(caught.value) or text[:4] == "lm1_" or not text


def test_a_secret_shows_itself_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    secret = drawn()
    token = secret.reveal()
    logging.getLogger("lowmark").warning("it is %s", secret, extra={"secret": secret})
    try:
        raise RuntimeError(secret)
    except RuntimeError:
        told = traceback.format_exc()
    assert token[8:] not in f"{secret!r} {secret} {told} {caplog.text} {[secret]} {vars}"
    with pytest.raises((TypeError, pickle.PicklingError)):
        pickle.dumps(secret)


def test_what_is_kept_is_the_plain_hash_of_the_whole_text() -> None:
    secret = drawn()
    assert secret.digest() == hashlib.sha256(secret.reveal().encode()).digest()
    assert secret.digest() == digest_of(secret.reveal())
    assert secret == Secret(secret.reveal())
    assert secret != drawn()


# -- passes -------------------------------------------------------------------------------------


def test_a_pass_is_known_by_its_prefix_and_tells_nothing_of_its_token() -> None:
    token = drawn()
    made = token.pass_for("a table")
    text = made.reveal()
    assert re.fullmatch("lmp1_[0-9A-Za-z]{49}", text)
    assert made.is_pass
    assert is_pass(text)
    assert not token.is_pass
    check_form(text)
    assert "lmp1_" not in repr(made)
    assert token.reveal()[4:20] not in text
    # a digit that was lost on the way is found
    for at in range(5, len(text)):
        with pytest.raises(TokenMalformed, match="check is wrong"):
            check_form(text[:at] + ("x" if text[at] != "x" else "y") + text[at + 1 :])
    # and neither is taken for the other one
    with pytest.raises(TokenMalformed):
        check_form("lm1_" + text[5:])
    with pytest.raises(TokenMalformed):
        check_form("lmp1_" + token.reveal()[4:])


def test_a_token_has_one_pass_for_a_thing_and_no_other_token_has_it() -> None:
    token, other = drawn(), drawn()
    assert token.pass_for("a") == token.pass_for("a")
    things = {token.pass_for("a"), token.pass_for("b"), other.pass_for("a"), other.pass_for("b")}
    assert len(things) == 4
