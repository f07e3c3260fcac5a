"""A permit of sluiced, with the standard library."""
import http.client
import json
import os
import socket
import time

# The sockets of this machine's replicas: where one is gone, the next one is asked.
SOCKETS = os.environ.get("SLUICED_SOCKETS", "/run/sluiced/callers.sock").split(":")


class Denied(Exception):
    """There is no turn now. Ask again after `seconds`."""

    def __init__(self, seconds):
        super().__init__(f"no turn; ask again in {seconds} s")
        self.seconds = seconds


class Permit:
    """Asks one replica. Leaving its `with` ends the permit."""

    def __init__(self, path, request):
        self.http = http.client.HTTPConnection("sluiced")
        self.http.auto_open = False
        self.http.sock = socket.socket(socket.AF_UNIX)
        self.http.sock.settimeout(40)  # longer than max_wait
        self.http.sock.connect(path)
        self.asked = time.monotonic()
        self.http.request("POST", "/v1/permits", json.dumps(request), {"Content-Type": "application/json"})
        answer = self.http.getresponse()
        self.status, self.retry_after = answer.status, int(answer.headers.get("Retry-After", 1))
        self.said = json.load(answer)

    def is_late(self):
        """Whether the call may come too late. A quarter of the time is for its way."""
        age = 1000 * (time.monotonic() - self.asked) - self.said["waited_ms"]
        return age > 0.75 * self.said["use_within_ms"]

    def end(self, how=""):
        try:
            self.http.request("DELETE", f"/v1/permits/{self.said['id']}{how}")
            self.http.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass  # it ends by itself
        self.http.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def ask(**request):
    """Waits for a turn. The caller makes its call at once."""
    seconds = 1
    for path in SOCKETS * 3:
        try:
            permit = Permit(path, request)
        except (OSError, http.client.HTTPException, ValueError):
            continue  # this replica is gone, or stops
        if permit.status == 200 and not permit.is_late():
            return permit
        if permit.status == 200:
            permit.end("?unused=true")
            continue
        permit.http.close()
        if permit.status == 429:
            raise Denied(permit.retry_after)
        if permit.status != 503:
            raise RuntimeError(permit.said["error"])
        seconds = permit.retry_after
    raise Denied(seconds)
