"""The `lowmark` command: thin, prints, exits.

A command parses its arguments, calls the package that does the work, and shows what it returned.
Results go to stdout, as a table or with `--json` as JSON; everything else goes to stderr.

Exit codes: 0 done · 1 failed · 2 wrong use (a bad option, a path that isn't there, bad settings)
· 130 interrupted. An error that Lowmark raises on purpose is shown as what happened, why, and what
to do; a traceback means a bug.

This module imports nothing heavy, and a command imports what it needs only when it is called: a
second of imports is a second in which Ctrl-C would end in a traceback out of a library.
"""

import gc
import os
import signal

__all__ = ["main"]

# Ctrl-C while a command starts.
#
# As long as modules are imported and arguments are read, there is nothing to undo. An exception
# would do harm there: libraries swallow a `KeyboardInterrupt` in their imports, or turn it into
# errors of their own. So until the command itself begins, Ctrl-C ends the process at once, with
# exit code 130.
#
# 1. `exit_if_interrupted`: from here on Ctrl-C ends the process.
# 2. Modules are imported, arguments and settings are read.
# 3. `raise_if_interrupted`: from here on Ctrl-C raises `KeyboardInterrupt`, as it does elsewhere in
#    Python, and the command closes what it has opened.
#
# A process that was started with SIGINT ignored (by `nohup`, or in the background of a script) goes
# on ignoring it.

INTERRUPTED = 130
"""The exit code: 128 and the number of SIGINT, as in a shell."""


def exit_if_interrupted() -> None:
    """Let Ctrl-C end the process at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_if_interrupted() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again; does nothing unless it ends the process now."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Garbage while a command starts, and at its end.
#
# What is imported stays until the process ends. To look through it for garbage, over and over while
# it becomes more, and twice more when the interpreter takes it apart, takes as long as a third of
# all imports. So until a command begins nothing is collected; what is there then is never looked
# through; and when the command has closed what it had open, nothing is looked through at all.


def begin() -> None:
    """The command itself begins: Ctrl-C raises, and garbage is collected."""
    if not gc.isenabled():  # else it is called in a process that goes on afterwards
        gc.freeze()
        gc.enable()
    raise_if_interrupted()


def _exit(number: int, frame: object) -> None:
    # Neither `sys.stderr` nor `sys.exit`: the interpreter may be in the middle of anything.
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def main() -> None:
    """Run the `lowmark` command."""
    exit_if_interrupted()
    gc.disable()
    # gRPC has lines of its own for a connection that does not come about; we say it by name.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from lowmark.cli.app import main as run  # noqa: PLC0415 (only now is Ctrl-C taken care of)

    try:
        run()
    finally:
        exit_if_interrupted()  # what the command had open is closed; the interpreter only ends
        gc.freeze()
