"""Kafka as a peer of streams: one broker on loopback, and Spark with its connector.

Spark's connector for Kafka comes out later than Spark. So there is an environment of its own, with
the last Spark that has one, in which both sides run. It is made once:

    python -m benchmarks.kafka_peer

Spark's own resolver fetches the jars of the broker and of the connector from Maven Central. All of
it is in one folder of the user's cache; without it, `find_kafka` says how to make it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

from benchmarks.figure import PeerMissing
from clusters.ports import free_ports
from clusters.processes import Children
from lowmark.spark.java import find_java

SPARK = "4.2.0"
BROKER = "4.1.2"
PACKAGES = {
    "connector": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",
    "broker": f"org.apache.kafka:kafka_2.13:{BROKER}",
}
CLUSTER = "bG93bWFyay1iZW5jaC0wMQ"
READY_WITHIN_S = 120.0


class KafkaMissing(PeerMissing):
    """Its environment was not made here."""

    def __init__(self, missing: Path) -> None:
        super().__init__(
            f"Kafka is left out, because {missing} is not there",
            hint="`python -m benchmarks.kafka_peer` makes an environment with Kafka, its connector"
            f" and Spark {SPARK}.",
        )


@dataclass(frozen=True, slots=True)
class Kafka:
    """What is needed of it."""

    folder: Path

    @property
    def python(self) -> Path:
        """That finds the Spark of the connector."""
        return self.folder / "env" / "bin" / "python"

    def jars(self, of: str) -> str:
        """A class path."""
        return str(self.folder / of / "jars" / "*")

    def broker_jars(self) -> str:
        """The same with Scala's library, which is Spark's: its resolver leaves that one out."""
        scala = "lib/python*/site-packages/pyspark/jars/scala-library-*.jar"
        [library] = (self.folder / "env").glob(scala)
        return f"{self.jars('broker')}{os.pathsep}{library}"


def kafka_folder() -> Path:
    """Where it is, or would be."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "lowmark" / "bench-kafka"


def find_kafka() -> Kafka:
    """What was made here before."""
    kafka = Kafka(kafka_folder())
    for path in (kafka.python, *(kafka.folder / of / "jars" for of in PACKAGES)):
        if not path.exists():
            raise KafkaMissing(path)
    return kafka


def make() -> Kafka:
    """Make the environment."""
    kafka = Kafka(kafka_folder())
    venv.create(kafka.folder / "env", with_pip=True)
    ours = [line for line in requires("lowmark") or () if "extra ==" not in line]
    words = [str(kafka.python), "-m", "pip", "install", "--quiet", f"pyspark=={SPARK}", *ours]
    subprocess.run(words, check=True)
    with tempfile.TemporaryDirectory() as folder:
        nothing = Path(folder) / "nothing.py"
        nothing.touch()
        for name, package in PACKAGES.items():
            ivy = f"spark.jars.ivy={kafka.folder / name}"
            submit = str(kafka.python.parent / "spark-submit")
            words = [submit, "--packages", package, "--conf", ivy, str(nothing)]
            subprocess.run(words, check=True, env=os.environ | {"SPARK_HOME": _home(kafka)})
    return find_kafka()


def _home(kafka: Kafka) -> str:
    code = "import pyspark; print(pyspark.__path__[0])"
    words = [str(kafka.python), "-c", code]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def broker(kafka: Kafka, children: Children, folder: Path, *, partitions: int) -> Iterator[str]:
    """A broker in a folder; gives its address. Settings are Kafka's own, but for places, and for
    what a cluster of one can't do.
    """
    port, controller = free_ports(2)
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(folder / "kafka"),
        "num.partitions": str(partitions),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    written = folder / "kafka.properties"
    written.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    java = [str(find_java().program), "-Xmx1g", "-cp", kafka.broker_jars()]
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(written)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    program = children.start_program([*java, "kafka.Kafka", str(written)], name="kafka")
    children.eventually(
        lambda: _listens(port), what="Kafka's broker listens", deadline_s=READY_WITHIN_S
    )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        program.kill()


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    print(f"Kafka is in {make().folder}", file=sys.stderr)
