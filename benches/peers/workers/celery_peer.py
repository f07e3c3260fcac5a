"""Celery on RabbitMQ with `rate_limit`, which each worker keeps for itself: each gets its share of the limit.

`publish N` fills the queue; workers are started with `celery`.
"""

import http.client
import sys
import threading
from urllib.parse import urlsplit

from celery import Celery
from common import AMQP, LIMIT, PROVIDER, WORKERS, body

app = Celery("celery_peer", broker=AMQP)
app.conf.task_acks_late = True
LOCAL = threading.local()


@app.task(name="send", rate_limit=f"{LIMIT / WORKERS}/s", ignore_result=True)
def send(text):
    if not hasattr(LOCAL, "connection"):
        LOCAL.connection = http.client.HTTPConnection(urlsplit(PROVIDER).netloc, timeout=10)
    LOCAL.connection.request("POST", urlsplit(PROVIDER).path, text)
    answer = LOCAL.connection.getresponse()
    answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"status {answer.status}")


if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        send.delay(body(number))
