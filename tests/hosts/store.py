"""An object store on a host of its own: moto, which speaks S3's protocol."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Self

from pyarrow import fs

from eventually import eventually
from hosts.hosts import Host, Hosts

PORT = 9000
BUCKET = "lowmark"
KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_EC2_METADATA_DISABLED": "true"}
_READY_S = 60.0


class ObjectStore:
    """It has one bucket. This process, and all that it starts, has the keys in its environment."""

    def __init__(self, hosts: Hosts) -> None:
        self.host: Host = hosts.add("store")
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        os.environ.update(KEYS)
        words = ["-m", "moto.server", "--host", self.host.address, "--port", str(PORT)]
        self._process = subprocess.Popen(
            self.host.command([sys.executable, *words]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            eventually(self._answers, deadline_s=_READY_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def location(self, folder: str) -> str:
        """Where a database has its ledgers there."""
        place = f"endpoint_override={self.host.address}:{PORT}&scheme=http&region=us-east-1"
        return f"s3://{BUCKET}/{folder}?{place}"

    def _answers(self) -> bool:
        assert self._process.poll() is None, "the object store has ended"
        there = f"{self.host.address}:{PORT}"
        with contextlib.suppress(OSError):
            fs.S3FileSystem(
                region="us-east-1",
                scheme="http",
                endpoint_override=there,
                allow_bucket_creation=True,
                retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
            ).create_dir(BUCKET)
            return True
        return False
