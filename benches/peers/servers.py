"""Private servers for the comparison: Redis, RabbitMQ and the provider that judges.

Each listens on a free port of 127.0.0.1 and keeps its files in a temporary directory. Every process runs
under timeout(1) in a process group of its own, so it ends even if this program is killed.
"""

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

# Nothing runs longer than this, whatever happens to the program that started it.
LONGEST = 1800
# Debian's wrapper in the PATH changes the user; the program behind it does not.
RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"


def free_port():
    """Below the ports that the kernel gives to outgoing connections: none of those takes it meanwhile."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Process:
    """A child that is stopped by its own process group."""

    def __init__(self, arguments, log, env=None, cwd=None, seconds=LONGEST):
        self._log = Path(log)
        with self._log.open("ab") as output:
            # `timeout` makes a process group of its own and passes signals on to it.
            self._child = subprocess.Popen(
                ["timeout", "--kill-after=10", str(seconds), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
            )

    def check(self):
        """Raises if it has ended."""
        code = self._child.poll()
        if code is not None:
            text = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self._log.name} ended early ({code}):\n{text}")

    def join(self, patience):
        """Waits for its end, and raises if it failed."""
        if self._child.wait(patience) != 0:
            self.check()

    def stop(self, patience=10):
        if self._child.poll() is None:
            self._child.terminate()
        try:
            self._child.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()


def wait_until(ready, process, patience):
    end = time.monotonic() + patience
    while not ready():
        process.check()
        if time.monotonic() > end:
            raise RuntimeError(f"no server within {patience} s")
        time.sleep(0.05)


def greets(port, first, expected):
    """Whether the server at `port` answers `first` with something that begins as expected."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as stream:
            stream.sendall(first)
            return stream.recv(len(expected)) == expected
    except OSError:
        return False


def redis_server(directory):
    port = free_port()
    arguments = f"redis-server --port {port} --bind 127.0.0.1 --save".split()
    process = Process([*arguments, "", "--dir", directory], directory / "redis.log")
    wait_until(lambda: greets(port, b"PING\r\n", b"+PONG"), process, 30)
    return process, f"redis://127.0.0.1:{port}/0"


def rabbitmq_server(directory):
    """Two processes: the name service of Erlang, and the broker."""
    port, epmd_port = free_port(), free_port()
    home = directory / "rabbitmq"
    home.mkdir()
    (home / "rabbitmq.conf").write_text(
        f"listeners.tcp.default = 127.0.0.1:{port}\n"
        "disk_free_limit.absolute = 50MB\n"
        "log.console = true\nlog.console.level = warning\n"
    )
    (home / "plugins").write_text("[].\n")
    env = {
        "HOME": home,
        "LANG": "C.UTF-8",
        "RABBITMQ_NODENAME": f"peers-{port}@localhost",
        "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": free_port(),
        "ERL_EPMD_PORT": epmd_port,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_CONFIG_FILE": home / "rabbitmq.conf",
        "RABBITMQ_CONF_ENV_FILE": home / "none.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": home / "plugins",
        "RABBITMQ_MNESIA_BASE": home / "data",
        "RABBITMQ_LOG_BASE": home / "log",
        # Schedulers that do not spin while they wait: the processors belong to the peers too.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
    }
    env = {name: str(value) for name, value in env.items()}
    epmd = Process(["epmd", "-port", epmd_port], directory / "epmd.log", env)
    program = RABBITMQ if os.access(RABBITMQ, os.X_OK) else shutil.which("rabbitmq-server")
    try:
        if program is None:
            raise RuntimeError("rabbitmq-server is missing")
        broker = Process([program], directory / "rabbitmq.log", env)
    except BaseException:
        epmd.stop()
        raise
    try:
        # A broker that answers the protocol's header with a method frame has its listener up.
        wait_until(lambda: greets(port, b"AMQP\x00\x00\x09\x01", b"\x01"), broker, 90)
    except BaseException:
        broker.stop()
        epmd.stop()
        raise
    return [broker, epmd], f"amqp://guest:guest@127.0.0.1:{port}/%2f"


class Provider:
    """`sluiced provider`: answers 202 to every call and judges every sliding window."""

    def __init__(self, program, rate, latency, directory):
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/send"
        self._process = Process(
            [program, "provider", "--listen", f"127.0.0.1:{self._port}"]
            + ["--rate", f"{rate}/1s", "--latency", latency],
            directory / "provider.log",
        )
        try:
            wait_until(self._listens, self._process, 10)
        except BaseException:
            self.stop()
            raise

    def _listens(self):
        try:
            self.report(0)
            return True
        except OSError:
            return False

    def report(self, expected):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", f"/report?expect={expected}")
            return json.load(connection.getresponse())
        finally:
            connection.close()

    def stop(self):
        self._process.stop()
