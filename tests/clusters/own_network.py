"""A network of a test's own: a loopback with addresses and names that only this test sees.

It is a namespace of the kernel, and ends with the process that holds it: nothing has to be removed.
There, 10.7.0.1 and fd00:7::1 are addresses of the machine, and a file says what names mean.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Self

import pytest

ADDRESSES = ("10.7.0.1/32", "10.7.0.2/32", "10.7.0.3/32", "fd00:7::1/128", "fd00:7::2/128")
_UP = " && ".join(
    [
        "ip link set lo up",
        *(f"ip addr add {one} dev lo {'nodad' * (':' in one)}" for one in ADDRESSES),
        'mount --bind "$0" /etc/hosts',
        "echo up",
        "exec cat",  # until its input ends, as it does with the process of the test
    ]
)
_LOCAL = "127.0.0.1 localhost\n::1 localhost\n"


class OwnNetwork:
    """While the `with` lasts, `words` are commands that run inside."""

    def __init__(self, folder: Path) -> None:
        self._hosts = folder / "hosts"
        self.name({})
        self._holder = subprocess.Popen(
            [*_unshare(), "sh", "-c", _UP, str(self._hosts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "up\n":
            self._holder.kill()
            pytest.skip(f"no network can be made here: {self._holder.communicate()[1].strip()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()

    def name(self, names: dict[str, str]) -> None:
        """What names mean from now on."""
        lines = "".join(f"{number} {name}\n" for name, number in names.items())
        self._hosts.write_text(_LOCAL + lines)  # the same file: it is what was mounted

    def words(self, command: Sequence[str]) -> list[str]:
        """A command that runs inside."""
        inside = ["nsenter", f"--target={self._holder.pid}", "--net", "--mount"]
        return [*inside, *(["--user", "--preserve-credentials"] * _needs_user()), "--", *command]

    def run(self, *words: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """`lowmark` with these words."""
        ran = subprocess.run(
            self.words([sys.executable, "-m", "lowmark", *words]),
            capture_output=True,
            text=True,
            check=False,
        )
        assert not ok or ran.returncode == 0, ran.stderr
        return ran


@cache
def _needs_user() -> bool:
    """Whether it takes a namespace of users, too: who is not root may be it inside."""
    plain = subprocess.run(
        ["unshare", "--net", "--mount", "true"], capture_output=True, check=False
    )
    return plain.returncode != 0


def _unshare() -> list[str]:
    return ["unshare", "--net", "--mount", *(["--user", "--map-root-user"] * _needs_user())]
