"""An object store on a host of its own: moto, which speaks S3's protocol.

python -m hosts.store ADDRESS
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Self

from clusters.processes import own_path
from hosts.hosts import Hosts, HostsUnavailable

PORT = 9000
BUCKET = "lowmark"
KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_EC2_METADATA_DISABLED": "true"}


class ObjectStore:
    """It has one bucket. This process, and all that it starts, has the keys in its environment."""

    def __init__(self, hosts: Hosts) -> None:
        self.host = hosts.add("store")
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        os.environ.update(KEYS)
        words = [sys.executable, "-m", "hosts.store", self.host.address]
        self._process = subprocess.Popen(
            self.host.command(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=own_path(),
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self.__exit__()
            raise HostsUnavailable("the object store did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        for key in KEYS:
            os.environ.pop(key, None)

    def location(self, folder: str) -> str:
        """Where a database has its ledgers there."""
        place = f"endpoint_override={self.host.address}:{PORT}&scheme=http&region=us-east-1"
        return f"s3://{BUCKET}/{folder}?{place}"


def main() -> None:
    """Serve until stdin ends."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415
    from pyarrow import fs  # noqa: PLC0415

    address = sys.argv[1]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address=address, port=PORT, verbose=False)
    server.start()
    fs.S3FileSystem(
        region="us-east-1",
        scheme="http",
        endpoint_override=f"{address}:{PORT}",
        allow_bucket_creation=True,
    ).create_dir(BUCKET)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
