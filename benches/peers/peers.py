"""The peers of the comparison: how the queue of each is filled, and how its workers are started."""

import re
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from servers import Process, free_port

WORKERS = Path(__file__).parent / "workers"
# Messages that one worker has under way; for sluiced its own default is left.
UNDER_WAY = 10


@dataclass(frozen=True)
class Work:
    """What is the same for every peer."""

    sluiced: str
    amqp: str
    redis: str
    provider: str
    rate: int
    workers: int
    directory: Path


@dataclass
class Peer:
    title: str
    # What fills the queue; the number of messages is added.
    publish: list
    # The command lines of its workers.
    commands: list
    env: dict = field(default_factory=dict)
    # Whether it asks Redis by scripts.
    scripted: bool = True
    # Whether a denial can be seen from outside of the peer.
    counts_denials: bool = True
    admins: list = field(default_factory=list)

    def environment(self, work):
        return {
            "PEERS_AMQP": work.amqp,
            "PEERS_REDIS": work.redis,
            "PEERS_PROVIDER": work.provider,
            "PEERS_LIMIT": str(work.rate),
            "PEERS_WORKERS": str(work.workers),
            "PEERS_TALLY": str(work.directory),
            "PYTHONPATH": str(WORKERS),
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.env,
        }

    def fill(self, work, count):
        """Starts what fills the queue."""
        command = [*self.publish, count]
        return Process(command, work.directory / "publish.log", self.environment(work), seconds=120)

    def start(self, work, seconds):
        """Starts the workers one by one; they end by themselves after `seconds`."""
        for number, command in enumerate(self.commands):
            log = work.directory / f"worker-{number}.log"
            yield Process(command, log, self.environment(work), seconds=seconds)

    def denials(self, work):
        """How often a limit said no so far; None where that cannot be seen."""
        if not self.counts_denials:
            return None
        if self.admins:
            return sum(map(denials_of_replica, self.admins))
        files = [file for file in work.directory.iterdir() if file.name.isdigit()]
        return sum(int(file.read_text() or 0) for file in files)


def denials_of_replica(admin):
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found = re.findall(r"^sluiced_denials_total\{.*\} (\d+)$", text, re.MULTILINE)
    return sum(map(int, found))


def python(name, *arguments):
    return [sys.executable, WORKERS / f"{name}.py", *arguments]


def sluiced(work):
    commands, admins = [], []
    for number in range(work.workers):
        admin = f"127.0.0.1:{free_port()}"
        file = work.directory / f"sluiced-{number}.toml"
        file.write_text(
            f"""\
[rabbitmq]
urls = ["{work.amqp}"]
[redis]
url = "{work.redis}"
[admin]
listen = "{admin}"
[limits.provider]
kind = "paced"
rate = "{work.rate}/1s"
[routes.work]
queue = "work"
limits = ["provider"]
[routes.work.downstream]
kind = "http"
url = "{work.provider}"
"""
        )
        commands.append([work.sluiced, "run", "--config", file])
        admins.append(admin)
    return Peer("**sluiced**", python("counter_peer", "publish"), commands, admins=admins)


def dramatiq(limiter, title):
    def peer(work):
        command = [sys.executable, "-m", "dramatiq", "dramatiq_peer"]
        command += ["--processes", work.workers, "--threads", UNDER_WAY]
        publish = python("dramatiq_peer", "publish")
        return Peer(title, publish, [command], {"PEERS_LIMITER": limiter}, scripted=False)

    return peer


def bullmq(work):
    script = WORKERS / "bullmq_peer.cjs"
    commands = [["node", script, "work"]] * work.workers
    return Peer("BullMQ 6.7 limiter", ["node", script, "publish"], commands, counts_denials=False)


def counter(on_denied, title):
    def peer(work):
        commands = [python("counter_peer", "work", on_denied)] * work.workers
        return Peer(title, python("counter_peer", "publish"), commands)

    return peer


PEERS = {
    "sluiced": sluiced,
    "dramatiq-window": dramatiq("window", "Dramatiq 2.2 WindowRateLimiter"),
    "dramatiq-bucket": dramatiq("bucket", "Dramatiq 2.2 BucketRateLimiter"),
    "bullmq": bullmq,
    "requeue": counter("requeue", "counter in Lua, denied → nack and requeue"),
    "poll": counter("poll", "counter in Lua, denied → ask again every 100 ms"),
}
