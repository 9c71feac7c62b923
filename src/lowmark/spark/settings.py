"""The settings of a session of our own, as plain values, and what the name of its master says.

Each setting is there for a reason, and what the caller gives wins over all of them.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lowmark.spark.errors import MasterNotReached, SessionRefused

LOOPBACK = "127.0.0.1"
TASK_ATTEMPTS = 4
"""What Spark does on clusters. In its local mode it gives up after one, unless told."""

DAEMON = "lowmark.spark.daemon"
"""The module of the process that workers are forked from; there, Lowmark must be installed."""

_ANSWERS_WITHIN_S = 5.0
_LOCAL = re.compile(r"local(?:\[\s*(\*|\d+)\s*(?:,\s*(\d+)\s*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")
_STANDALONE = re.compile(r"spark://([^/\s]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """A master, by its name."""

    name: str
    in_process: bool = False  # tasks are threads of the one Java process
    same_machine: bool = False  # nothing needs to be reached from elsewhere
    addresses: tuple[tuple[str, int], ...] = ()  # one of them must answer


def read_master(name: str) -> Master:
    """A master's name, understood; in local mode a task gets its further attempts, too."""
    if local := _LOCAL.fullmatch(name):
        slots, attempts = local.groups()
        if slots is not None and slots != "*" and not int(slots):
            raise SessionRefused(f"{name!r} has no core to work on", hint="Give local[1] or more.")
        full = f"local[{slots or 1},{attempts or TASK_ATTEMPTS}]"
        return Master(name=full, in_process=True, same_machine=True)
    if _LOCAL_CLUSTER.fullmatch(name):
        return Master(name=name, same_machine=True)
    if standalone := _STANDALONE.fullmatch(name):
        addresses = tuple(_address(part, name) for part in standalone.group(1).split(","))
        return Master(
            name=name,
            same_machine=all(_is_loopback(host) for host, _ in addresses),
            addresses=addresses,
        )
    if name == "yarn" or name.startswith("k8s://"):
        return Master(name=name)
    raise SessionRefused(
        f"{name!r} is not a Spark master",
        hint="Give local[*], local[2], local-cluster[2,1,1024], spark://host:port, yarn or"
        " k8s://….",
    )


def reach(master: Master) -> None:
    """Raise if no process answers at any of the master's addresses.

    Spark would ask for a minute and log stack traces meanwhile.
    """
    failures = []
    for host, port in master.addresses:
        try:
            with socket.create_connection((host, port), timeout=_ANSWERS_WITHIN_S):
                return
        except OSError as error:
            failures.append(f"{host}:{port}: {error}")
    if failures:
        raise MasterNotReached(master.name, why="; ".join(failures))


def _address(text: str, name: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise SessionRefused(
            f"{name!r} is not a Spark master: {text!r} is not a host and a port",
            hint="Give it as spark://host:port; 7077 is a standalone master's usual port.",
        )
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""The Java process only places tasks. It is short of time when it starts, and never again; so the
compiler that is ready soonest is the best one, and the collector that needs no threads."""

LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

_SOCKET_NAME_LENGTH = len("/.00000000-0000-0000-0000-000000000000.sock")
_SOCKET_PATH_MAX = 100
"""The system takes 107 characters."""


def settings_for(
    master: Master,
    *,
    app_name: str,
    config: Mapping[str, str],
    scratch: Path | None,
    python: str,
    warm: bool,
) -> dict[str, str]:
    """All settings of a session, but for the options of a Java process that is not started yet."""
    settings = {
        "spark.master": master.name,
        "spark.app.name": app_name,
        "spark.pyspark.python": python,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A cancelled task's Python is given this long to end by itself. Ours would not: it is in
        # the middle of its work.
        "spark.python.task.killTimeout": "100ms",
        # Arrow's own allocator keeps what it was given once: half as much again at the peak.
        "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    }
    if warm:
        # Spark ends workers that rest for a minute; the next ones need not import everything again.
        settings["spark.python.daemon.module"] = DAEMON
    if "spark.driver.host" not in config:
        if not master.same_machine:
            raise SessionRefused(
                f"executors of {master.name} may be on other machines, and can't connect back",
                detail="Everything listens on loopback unless you say otherwise.",
                hint="Give spark.driver.host in the session's config: a name or an address of this"
                " machine that the executors reach.",
            )
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if master.in_process:
        # Its ports are open to every user of this machine. In this mode Spark draws a secret.
        settings["spark.authenticate"] = "true"
    if master.in_process and scratch is not None:
        # All that Spark leaves behind on the disk is in one folder, which goes with the session.
        settings["spark.local.dir"] = str(scratch)
        if len(str(scratch)) + _SOCKET_NAME_LENGTH <= _SOCKET_PATH_MAX:
            settings |= {
                "spark.python.unix.domain.socket.enabled": "true",
                "spark.python.unix.domain.socket.dir": str(scratch),
            }
    return {**settings, **config}


def java_options(config: Mapping[str, str], archive: tuple[str, ...]) -> str:
    """What the Java process of the driver is started with.

    A user who gives `spark.driver.extraJavaOptions` tunes it: ours would contradict theirs, and two
    collectors end a Java process at once. What it says and where stays ours.
    """
    theirs = config.get("spark.driver.extraJavaOptions", "")
    ours = [f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"]
    # Java's own log goes to stdout, where a command's output is.
    ours.append("-Xlog:disable")
    if not theirs:
        ours.extend(JAVA_OPTIONS)
        ours.extend(archive)
    return " ".join([*map(shlex.quote, ours), *([theirs] if theirs else [])])


def launch_environment(
    environment: Mapping[str, str], settings: Mapping[str, str], *, scratch: Path, python: str
) -> dict[str, str]:
    """The environment of the Java process."""
    made = dict(environment) | {
        "PYSPARK_PYTHON": python,
        # Where executors of a cluster inside this process work; else it were beside Spark's jars.
        "SPARK_WORKER_DIR": str(scratch / "work"),
        "SPARK_CONNECT_MODE": "0",
        # A small Java process finds out how to start the large one.
        "SPARK_LAUNCHER_OPTS": " ".join(JAVA_OPTIONS),
    }
    if settings.get("spark.driver.host") == LOOPBACK:
        # Web pages of a master and its workers inside this process look only here.
        made["SPARK_LOCAL_IP"] = LOOPBACK
    return made
