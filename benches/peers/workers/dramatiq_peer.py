"""Dramatiq on RabbitMQ with one of its rate limiters on Redis, as its cookbook shows it.

A denial raises RateLimitExceeded, and the Retries middleware brings the message back after a backoff.
`PEERS_LIMITER` is `window` or `bucket`. `publish N` fills the queue; workers are started with `dramatiq`.
"""

import http.client
import os
import sys
import threading
from urllib.parse import urlsplit

import dramatiq
from common import AMQP, LIMIT, PROVIDER, REDIS, Denials, body
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.rate_limits import BucketRateLimiter, WindowRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

dramatiq.set_broker(RabbitmqBroker(url=AMQP))
BACKEND = RedisBackend(url=REDIS)
if os.environ["PEERS_LIMITER"] == "window":
    LIMITER = WindowRateLimiter(BACKEND, "calls", limit=LIMIT, window=1)
else:
    LIMITER = BucketRateLimiter(BACKEND, "calls", limit=LIMIT, bucket=1000)
DENIALS = Denials()
LOCAL = threading.local()


class Counting(dramatiq.Middleware):
    """Starts the count where the work is: in the process of a worker, not in its parent."""

    def after_process_boot(self, broker):
        DENIALS.start()


dramatiq.get_broker().add_middleware(Counting())


def call(text):
    if not hasattr(LOCAL, "connection"):
        LOCAL.connection = http.client.HTTPConnection(urlsplit(PROVIDER).netloc, timeout=10)
    LOCAL.connection.request("POST", urlsplit(PROVIDER).path, text)
    answer = LOCAL.connection.getresponse()
    answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"status {answer.status}")


# The defaults (20 retries, from 15 s to 7 days) would leave the limit idle and drop messages: so the shortest
# backoff that the guide allows, up to one window, and no end of it.
@dramatiq.actor(max_retries=None, min_backoff=101, max_backoff=1000)
def send(text):
    try:
        with LIMITER.acquire():
            call(text)
    except dramatiq.RateLimitExceeded:
        DENIALS.add()
        raise


if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        send.send(body(number))
