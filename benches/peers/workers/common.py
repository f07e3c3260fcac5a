"""What every peer in Python shares: its surroundings, the call, and a count of denials."""

import json
import os
import threading
import time
from pathlib import Path

AMQP = os.environ["PEERS_AMQP"]
REDIS = os.environ["PEERS_REDIS"]
PROVIDER = os.environ["PEERS_PROVIDER"]
# Calls a second that the account allows, all workers together.
LIMIT = int(os.environ["PEERS_LIMIT"])
# How many workers share it.
WORKERS = int(os.environ["PEERS_WORKERS"])


def body(number):
    """The message: its id is how the provider distinguishes messages."""
    return json.dumps({"id": f"message-{number:06}", "to": f"+4915550{number:06}", "text": "Hello"})


class Denials:
    """Counts denials of this process, and writes the count into a file four times a second."""

    def __init__(self):
        self._lock = threading.Lock()
        self._count = 0

    def start(self):
        threading.Thread(target=self._write, daemon=True).start()

    def add(self):
        with self._lock:
            self._count += 1

    def _write(self):
        file = Path(os.environ["PEERS_TALLY"]) / str(os.getpid())
        while True:
            file.write_text(str(self._count))
            time.sleep(0.25)
