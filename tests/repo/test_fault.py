from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections import Counter

import msgspec
import pytest

import lowmark
from lowmark.backend.errors import AppendFailed, Ended
from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected, Unavailable
from lowmark.fault import FAULT_BYTES_MAX, decode_fault, encode_fault
from lowmark.metastore import RevisionCompacted


def there_and_back(error: LowmarkError) -> LowmarkError:
    arrived = decode_fault(encode_fault(error))
    assert arrived is not None
    return arrived


def test_a_class_that_is_known_arrives_as_itself_with_what_it_carries() -> None:
    arrived = there_and_back(RevisionCompacted(wanted="revision 3", first_left=9))
    assert type(arrived) is RevisionCompacted
    assert arrived.message == "revision 3 was compacted away"
    assert arrived.first_left == 9
    with pytest.raises(RevisionCompacted):
        raise arrived.again()


@pytest.mark.slow
def test_an_error_arrives_as_the_class_that_can_be_caught_though_it_was_not_imported() -> None:
    # given a fresh interpreter: nothing has asked for these classes
    program = """if True:
        from lowmark.fault import decode_fault
        from lowmark import errors
        for name, kind in ("GapFound", "Conflict"), ("SparkMissing", "Rejected"):
            data = f'{{"class": "{name}", "kind": "{kind}", "message": "m"}}'
            arrived = decode_fault(data.encode())
            print(name, isinstance(arrived, getattr(errors, name)))
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["GapFound", "True", "SparkMissing", "True"]


@pytest.mark.parametrize("kind", [Rejected, Conflict, Unavailable, Corrupt, LowmarkError])
def test_a_class_that_nobody_knows_keeps_its_name_and_its_kind(kind: type[LowmarkError]) -> None:
    # given an error of a class that this process does not have any more
    made = type("OfTheFuture", (kind,), {})
    data = encode_fault(made("no", detail="Why.", hint="Do this."))
    data = data.replace(b"OfTheFuture", f"Of{kind.__name__}Alone".encode())
    # when it arrives
    arrived = decode_fault(data)
    # then whoever catches the kind catches it, and its name can be shown
    assert isinstance(arrived, kind)
    assert type(arrived).__name__ == f"Of{kind.__name__}Alone"
    assert (arrived.message, arrived.detail, arrived.hint) == ("no", "Why.", "Do this.")


def classes_below(kind: type[LowmarkError]) -> set[type[LowmarkError]]:
    """Those that are written down, not those that a test or a peer has made."""
    ours = [one for one in kind.__subclasses__() if one.__module__.startswith("lowmark.")]
    below = [one for one in ours if one.__module__ != "lowmark.fault"]
    return {*below, *(one for each in below for one in classes_below(each))}


def test_every_error_of_lowmark_arrives_as_itself_with_what_it_carries() -> None:
    # given every class of error that there is
    for module in pkgutil.walk_packages(lowmark.__path__, "lowmark."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    classes = classes_below(LowmarkError)
    assert len(classes) > 100
    # then no two have one name
    twice = [name for name, count in Counter(one.__name__ for one in classes).items() if count > 1]
    assert twice == []
    # and each arrives as it is
    for one in classes:
        error = one.__new__(one)
        LowmarkError.__init__(error, "it is red", detail="It was painted.", hint="Paint it.")
        error.__dict__.update(
            number=7, said="so", failed=True, where=None, stored=(1, 2), ids=("a",)
        )
        arrived = there_and_back(error)
        assert type(arrived) is one
        assert vars(arrived) == vars(error)


def test_which_partitions_have_their_rows_is_told_across_processes() -> None:
    given = AppendFailed("t", stored=[1], refused=[], unknown=[2, 3], cause=Rejected("r"))
    arrived = there_and_back(given)
    assert isinstance(arrived, AppendFailed)
    assert (arrived.stored, arrived.refused, arrived.unknown) == ((1,), (), (2, 3))


def test_a_release_that_knows_fewer_kinds_of_values_reads_the_rest() -> None:
    """Before, there were numbers and texts."""
    plain = msgspec.json.decode(encode_fault(Ended("orders")))
    assert plain["class"] == "Ended"
    assert plain["fields"] == {}


def test_a_long_story_is_cut_so_that_it_fits_into_a_header() -> None:
    long = Rejected("m" * 9_000, detail="ü" * 9_000, hint="\n" * 9_000)
    assert len(encode_fault(long)) <= FAULT_BYTES_MAX
    assert there_and_back(long).message.startswith("mmm")


@pytest.mark.parametrize("data", [b"", b"rubbish", b"{}", b'{"class": 1}', b"\xff"])
def test_bytes_that_are_no_error_are_none(data: bytes) -> None:
    assert decode_fault(data) is None


def test_a_name_that_could_be_no_class_is_replaced_by_the_kind() -> None:
    arrived = decode_fault(b'{"class": "a b", "kind": "Conflict", "message": "m"}')
    assert type(arrived).__name__ == "Conflict"
    assert isinstance(arrived, Conflict)


def test_what_an_error_carries_can_t_replace_its_words() -> None:
    data = b'{"class":"X","kind":"Rejected","message":"m","fields":{"message":"n","__class__":"y"}}'
    arrived = decode_fault(data)
    assert arrived is not None
    assert arrived.message == "m"
    assert "__class__" not in vars(arrived)
