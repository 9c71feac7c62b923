"""A session that does once what sessions do, so that Java learns the classes for it.

It is a process of its own, run with `python -m`: see `archive.make_archive`.
"""

from __future__ import annotations

from lowmark.spark.runner import SparkRunner
from lowmark.spark.session import open_session

__all__ = ["echo"]


def echo(data: bytes) -> bytes:
    """The least work there is."""
    return data


def _rehearse() -> None:
    # By its full name, as workers will import it: here this module is called `__main__`.
    from lowmark.spark.rehearsal import echo as named  # noqa: PLC0415

    runner = SparkRunner(open_session("local[2]"), owns=True)
    try:
        for _ in range(3):
            runner.run(named, [[b"1", b"2"], [b"3"]], label="rehearsal")
    finally:
        runner.close()


if __name__ == "__main__":
    _rehearse()
