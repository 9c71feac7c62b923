"""Names that are imported when they are first used."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import lowmark
from lowmark.faces import deferred

PACKAGES = [
    name for _, name, is_package in pkgutil.iter_modules(lowmark.__path__, "lowmark.") if is_package
]


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_every_name_that_it_lists(name: str) -> None:
    package = importlib.import_module(name)
    for one in getattr(package, "__all__", ()):
        assert getattr(package, one) is not None
        assert one in dir(package)


def test_a_name_imports_the_module_that_it_is_of_and_not_the_package() -> None:
    shown = run(
        "import sys; from lowmark.raft import LogLost;"
        " print(LogLost.__name__, 'lowmark.raft.node' in sys.modules)"
    )
    assert shown == "LogLost False"


def test_a_name_that_a_package_does_not_have_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"module 'lowmark\.raft' has no attribute 'nope'"):
        importlib.import_module("lowmark.raft").nope  # noqa: B018


def test_a_deferred_function_imports_its_module_when_it_is_called() -> None:
    shown = run(
        "import sys; from lowmark.faces import deferred;"
        " (quote,) = deferred('shlex', 'quote');"
        " print('shlex' in sys.modules, quote('a b'), 'shlex' in sys.modules)"
    )
    assert shown == "False 'a b' True"
    (split,) = deferred("shlex", "split")
    assert split("a 'b c'", posix=True) == ["a", "b c"]
