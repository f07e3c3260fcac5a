"""Messages of the test as Celery tasks. With the name of one and a number: publishes so many."""
import http.client
import os
import sys
import threading

from celery import Celery

from celery_permit import permitted

app = Celery(broker=os.environ["BROKER"])
app.conf.task_default_queue = os.environ["QUEUE"]
app.conf.broker_transport_options = {"confirm_publish": True}
app.conf.worker_prefetch_multiplier = 1
app.conf.task_ignore_result = True
PROVIDER, CALLER = os.environ["PROVIDER"], os.environ["CALLER"]
mine = threading.local()
# A thread that waits for the others of its process would make its permit too old.
sys.setswitchinterval(0.001)


# A denial that counted as a retry would be the last.
@app.task(bind=True, acks_late=True, name="send", max_retries=0)
@permitted(keys=lambda number: {"sender": f"s{number % 4}"})
def send(self, number):
    call(number, f"s{number % 4}")


@app.task(bind=True, acks_late=True, name="paced", max_retries=0)
@permitted(wait="20s")
def paced(self, number):
    # The time says which copy it is: a denied task is published again before its message is acknowledged.
    call(number, f"{CALLER} c{number} {self.request.eta}")


def call(number, key):
    headers = {"x-message-id": f"c{number}", "x-caller": CALLER, "x-key": key}
    if not hasattr(mine, "http"):
        mine.http = http.client.HTTPConnection(PROVIDER)
    mine.http.request("POST", "/send", headers=headers)
    answer = mine.http.getresponse()
    answer.read()
    if answer.status != 202:
        raise RuntimeError(answer.status)


if __name__ == "__main__":
    task = {"send": send, "paced": paced}[sys.argv[1]]
    for number in range(int(sys.argv[2])):
        task.delay(number)
