"""Hypothesis profiles: `ci` finds the same thing every time; `long` goes looking, by hand:
`HYPOTHESIS_PROFILE=long make test`.

And Ctrl-C: a suite that was started in the background, or by `nohup`, ignores SIGINT. Every process
that it starts would inherit that, and the tests that interrupt one would wait for ever.

And groups: from pytest 9.2 on, pytest-xdist 3.8 does not see which group a test is of, and says
nothing (pytest-xdist issue 1386). Every process would then start a Spark session of its own.

And disks: tests sync thousands of times, so their directories are in memory where there is room
for them, and go when their test has passed. `LOWMARK_TESTS_ON=disk` (as in `make test-all`) has
them on the disk.

And hosts: with `--hosts`, the nodes of a test are each in a host of their own, and the process of
the tests is in one, too (`clusters/places.py`). A test that is marked `hosts` is made by such a run
where hosts can be made, and where they can't, here.

And bytecode: pytest rewrites each test file before it compiles it, 15 seconds of processor time in
every worker. What it made is kept, also where the environment forbids Python to write bytecode.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from clusters.places import in_hosts, in_real_store, world
from hosts.between import passes_between_hosts
from hosts.hosts import why_none
from running import Runner, group_of, longest_first, shared_in_module
from walls import STEP_MS, by_steps, wall_clock

if TYPE_CHECKING:
    from lowmark.spark import SparkRunner

# Slow machines must not fail a test, so there is no deadline; pytest-timeout catches what hangs.
settings.register_profile(
    "ci",
    max_examples=100,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long",
    max_examples=5_000,
    stateful_step_count=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

sys.dont_write_bytecode = False

MEMORY = "/dev/shm"
MEMORY_BYTES_MIN = 4 << 30


def _is_roomy(folder: str) -> bool:
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK) and found.f_bavail * found.f_frsize >= MEMORY_BYTES_MIN


if os.environ.get("LOWMARK_TESTS_ON", "memory") == "memory" and _is_roomy(MEMORY):
    # Read by pytest when it makes its first directory; its workers are told where that is.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto` is half as many processes again as there are cores: tests wait a third of their
    time, for disks, leases and other processes.
    """
    cores = len(os.sched_getaffinity(0))
    return cores + cores // 2


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the nodes of tests are."""
    add = parser.getgroup("lowmark").addoption
    add("--hosts", action="store_true", help="have each node in a host of its own")
    add("--store", action="store_true", help="with --hosts: have ledgers in an object store")
    add("--real-store", action="store_true", help="have ledgers in versitygw, which can be killed")


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Iterator[None]:
    """Go into a host before there is a second thread, and stay there."""
    asked = config.option
    if not (asked.hosts or asked.real_store) or getattr(asked, "numprocesses", None):
        return (yield)  # with several processes, each that runs tests comes here by itself
    if asked.hosts and why_none():
        raise pytest.UsageError(f"no hosts: {why_none()}")
    with tempfile.TemporaryDirectory(prefix="lowmark-hosts-") as name, ExitStack() as ends:
        folder = Path(name)
        if asked.hosts:
            ends.enter_context(in_hosts(folder, store=asked.store, real=asked.real_store))
        else:
            ends.enter_context(in_real_store(folder))
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Have a test between hosts made by a process that goes into one."""
    if pyfuncitem.get_closest_marker("hosts") is None or world() is not None or why_none():
        return None
    name = f"{pyfuncitem.path}::{pyfuncitem.originalname}"
    folder = pyfuncitem.funcargs["tmp_path"]
    assert isinstance(folder, Path)
    passes_between_hosts(folder, name)
    return True


@pytest.hookimpl(trylast=True)  # the terminal comes first
def pytest_configure(config: pytest.Config) -> None:
    """A run by several processes shows lines, not a letter for each of ten thousand tests; with
    `-v`, it names them all.
    """
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    several = getattr(config.option, "numprocesses", None)
    if several and terminal is not None and config.option.verbose <= 0:
        config.pluginmanager.register(Runner(terminal))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the name of a test end with its group, by which pytest-xdist tells it, if it does not."""
    if not getattr(config.option, "loadgroup", False):
        return
    item: Any
    for item in items:
        if group_of(item) is None and (home := shared_in_module(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(home))
        for mark in item.iter_markers("xdist_group"):
            if not item.nodeid.endswith(f"@{mark.args[0]}"):
                item._id = item.id.parse(f"{item.nodeid}@{mark.args[0]}")
    longest_first(items)


@pytest.fixture(scope="session", autouse=STEP_MS > 0)
def clock_by_steps() -> Iterator[None]:
    """See `walls.STEP_MS`."""
    with wall_clock(by_steps(STEP_MS)):
        yield


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRunner]:
    """One Spark session for all tests that need one, on two cores: it takes seconds to start.
    With `--hosts`, its master and its workers are in hosts of their own.

    A test that asks for it is of the group `spark`, so that one process has it. It is also the
    session that `SparkSession.builder.getOrCreate()` gives.
    """
    from lowmark.spark import SparkRunner, open_session  # noqa: PLC0415
    from lowmark.spark.archive import SWITCH  # noqa: PLC0415
    from spark.jobs import ON_WORKERS  # noqa: PLC0415
    from spark.standalone import standalone  # noqa: PLC0415

    with ExitStack() as ends:
        patched = ends.enter_context(pytest.MonkeyPatch.context())
        patched.setenv(SWITCH, "off")  # a test leaves nothing in the user's cache
        master, config = "local[2]", ON_WORKERS
        if world() is not None:
            cluster = ends.enter_context(standalone(tmp_path_factory.mktemp("spark")))
            master, config = cluster.master, {**ON_WORKERS, **cluster.config}
        runner = SparkRunner(open_session(master, config=config), owns=True)
        ends.callback(runner.close)
        yield runner
