"""Gives each peer the same backlog, lets the provider judge, and prints one table.

Started by `run`, which installs what this needs. README.md beside it says what the columns mean.
"""

import argparse
import contextlib
import dataclasses
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import redis
from peers import PEERS, Work
from servers import Provider, rabbitmq_server, redis_server

# A peer may take so many times as long as the limit asks for; what was not called then counts as missing.
PATIENCE = 3
# After the last message a peer has so long to call one a second time.
SETTLE_SECONDS = 2
# Redis counts what a script runs like what a client sends. Clients of the peers with scripts send only commands
# that begin so, and their scripts run none of these (seen with MONITOR).
SENT = ("eval", "script", "ping", "bzpopmin", "client", "hello", "subscribe")
HEADER = [
    "peer",
    "worst second (limit {rate})",
    "calls over",
    "limit used",
    "requests to Redis a call",
    "commands in Redis a call",
    "denials a message",
    "not called",
    "called twice",
    "host took",
]


def arguments():
    parser = argparse.ArgumentParser(prog="benches/peers/run", description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=100, help="calls a second that the account allows")
    parser.add_argument("--seconds", type=int, default=20, help="how long the backlog lasts at that rate")
    parser.add_argument("--workers", type=int, default=4, help="workers (replicas) of each peer")
    parser.add_argument("--latency", default="20ms", help="how long the provider takes to answer")
    parser.add_argument("--only", default=",".join(PEERS), help="peers, separated by commas")
    given = parser.parse_args()
    given.only = given.only.split(",")
    unknown = set(given.only) - set(PEERS)
    if unknown or min(given.rate, given.seconds, given.workers) < 1 or given.seconds > 120:
        parser.error(f"--only takes {', '.join(PEERS)}; numbers are at least 1, --seconds at most 120")
    return given


class Host:
    """What the host took of the processors (`st` of vmstat): the work stands still meanwhile."""

    def __init__(self):
        self._stolen, self._all = self._ticks()

    @staticmethod
    def _ticks():
        # proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal; guests are part of the first two.
        ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return ticks[7], sum(ticks)

    def took(self):
        stolen, every = self._ticks()
        return (stolen - self._stolen) * 100 / max(1, every - self._all)


def commands_run(store, scripted):
    """Commands since the last reset: those that clients sent, and all, with those that scripts ran."""
    calls = {name[len("cmdstat_") :]: row["calls"] for name, row in store.info("commandstats").items()}
    # Those of this program.
    for own in ("info", "config|resetstat"):
        calls.pop(own, None)
    every = sum(calls.values())
    sent = sum(count for name, count in calls.items() if name.startswith(SENT)) if scripted else every
    return sent, every


def measure(name, given, work, store):
    """One peer, from an empty queue to its row of the table."""
    count = given.rate * given.seconds
    longest = given.seconds * PATIENCE + 10
    with contextlib.ExitStack() as running:
        provider = Provider(work.sluiced, given.rate, given.latency, work.directory)
        running.callback(provider.stop)
        work = dataclasses.replace(work, provider=provider.url)
        peer = PEERS[name](work)
        fill(peer, work, count)
        store.config_resetstat()
        host, workers, end = Host(), [], time.monotonic() + longest
        for worker in peer.start(work, longest + 60):
            running.callback(worker.stop)
            workers.append(worker)
        while provider.report(count)["lost"] and time.monotonic() < end:
            for worker in workers:
                worker.check()
            time.sleep(0.25)
        asked, every = commands_run(store, peer.scripted)
        denied, took = peer.denials(work), host.took()
        time.sleep(SETTLE_SECONDS)
        report = provider.report(count)
    return row(peer, report, count, (asked, every), denied, took)


def fill(peer, work, count):
    """Fills the queue before any worker runs."""
    publisher = peer.fill(work, count)
    try:
        publisher.join(120)
    finally:
        publisher.stop()


def row(peer, report, count, commands, denied, took):
    calls = max(1, report["calls"])
    return [
        peer.title,
        f"{report['worst']:,} (+{max(0, report['worst'] - report['limit']) * 100 / report['limit']:.0f} %)",
        f"{report['over']:,}",
        f"{report['used'] * 100:.1f} %" if report["used"] else "-",
        figure(commands[0] / calls),
        figure(commands[1] / calls),
        "-" if denied is None else figure(denied / count),
        f"{report['lost']:,}",
        f"{report['repeated']:,}",
        f"{took:.1f} %",
    ]


def figure(number):
    """Two digits that say something."""
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def main():
    given = arguments()
    # SIGTERM stops what was started, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    load = os.getloadavg()[0]
    rows = []
    with contextlib.ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="sluiced-peers-")))
        process, redis_url = redis_server(directory)
        running.callback(process.stop)
        brokers, amqp = rabbitmq_server(directory)
        for process in reversed(brokers):
            running.callback(process.stop)
        store = redis.Redis.from_url(redis_url)
        whole = Host()
        for name in given.only:
            store.flushall()
            (directory / name).mkdir()
            work = Work(os.environ["SLUICED"], amqp, redis_url, "", given.rate, given.workers, directory / name)
            rows.append(measure(name, given, work, store))
            print(" | ".join(rows[-1]), file=sys.stderr)
        took = whole.took()
        node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
        redis_version = store.info("server")["redis_version"]
        versions = f"Redis {redis_version}, Python {platform.python_version()}, Node {node}"
        loads = f"load {load:.1f} before the start and {os.getloadavg()[0]:.1f} at the end"
    print(f"{given.rate * given.seconds:,} messages, {given.rate} calls a second allowed, {given.workers} workers.")
    print(f"{os.cpu_count()} processors, {loads}; the host took {took:.1f} % of them.")
    print(f"{versions}.\n")
    for line in [HEADER, ["---"] * len(HEADER), *rows]:
        print("| " + " | ".join(line).format(rate=given.rate) + " |")


if __name__ == "__main__":
    main()
