"""One process: where the settings of the packages below meet, and where they run.

**A node** (`Node`) builds the packages below on a real runtime and runs them until it is asked
to stop; `open_offline` reads the data directory of one that does not run.

**The server** is Arrow Flight, at an address that `addresses` allows: administration by actions
(see `messages` for what they take and give), by `NodeClient` or any other Flight client. Flight has
threads of its own, the packages have one: `Bridge` is the only way between them.

**Settings.** A package that can be tuned gives a frozen dataclass with defaults that checks itself
in `__post_init__` (`lowmark.log.LogConfig`). The name of its section and the name of its field are
the whole name of a setting, written in two places:

    lowmark.toml                        environment

    [log]                               LOWMARK_LOG_WAL_BYTES_MAX=268435456
    wal_bytes_max = "256MiB"

What was said closest to the command wins: an argument, then the environment, then the file, then
the default. A name that a section does not know is refused, never ignored: a typo in a limit is a
limit that does not exist.

**Logs** go to stderr, as `key=value` or as JSON; what a program prints on stdout is its result and
nothing else. Quiet unless something needs a person.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.node.addresses import DEFAULT_ENDPOINT, Guard, NotAdvertised, NotLoopback
    from lowmark.node.bridge import NodeClosed, NodeClosing, NodeSilent, ThreadAnswer
    from lowmark.node.client import AnswerLost, NodeClient, NodeUnreachable
    from lowmark.node.directory import NotADatabase, check_directory, data_path, make_directory
    from lowmark.node.logs import LogFormat, Logging, LogLevel, configure_logging
    from lowmark.node.messages import (
        STATES,
        GetReply,
        GroupRow,
        GuardReply,
        HistoryPage,
        RangePage,
        Status,
        StoredEntry,
        WatchEvent,
        WatchStarted,
    )
    from lowmark.node.node import Node, NodeOptions
    from lowmark.node.settings import Settings, load_settings

__all__ = [
    "DEFAULT_ENDPOINT",
    "STATES",
    "AnswerLost",
    "GetReply",
    "GroupRow",
    "Guard",
    "GuardReply",
    "HistoryPage",
    "LogFormat",
    "LogLevel",
    "Logging",
    "Node",
    "NodeClient",
    "NodeClosed",
    "NodeClosing",
    "NodeOptions",
    "NodeSilent",
    "NodeUnreachable",
    "NotADatabase",
    "NotAdvertised",
    "NotLoopback",
    "RangePage",
    "Settings",
    "Status",
    "StoredEntry",
    "ThreadAnswer",
    "WatchEvent",
    "WatchStarted",
    "check_directory",
    "configure_logging",
    "data_path",
    "load_settings",
    "make_directory",
]

__getattr__, __dir__ = face(__name__)
