"""One process: where the settings of the rooms below come together.

**Settings.** A room that can be tuned gives a frozen dataclass with defaults and checks itself in
`__post_init__` (`lowmark.log.LogConfig`). The name of its section and the name of its field are the
whole name of a setting, written in two places:

    lowmark.toml                        environment

    [log]                               LOWMARK_LOG_WAL_BYTES_MAX=268435456
    wal_bytes_max = "256MiB"

What was said closest to the command wins: an argument, then the environment, then the file, then
the default. A name that a section does not know is refused, never ignored: a typo in a limit is a
limit that does not exist.

**Logs** go to stderr, as `key=value` or as JSON; what a program prints on stdout is its result and
nothing else. Quiet unless something needs a person.
"""

from lowmark.node.logs import LogFormat, Logging, LogLevel, configure_logging
from lowmark.node.settings import Settings, load_settings

__all__ = [
    "LogFormat",
    "LogLevel",
    "Logging",
    "Settings",
    "configure_logging",
    "load_settings",
]
