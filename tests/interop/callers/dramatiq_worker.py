"""Messages of the test as Dramatiq messages. With an argument: publishes so many."""
import http.client
import os
import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from dramatiq_permit import Permits

broker = RabbitmqBroker(url=os.environ["BROKER"], confirm_delivery=True)
broker.add_middleware(Permits())
dramatiq.set_broker(broker)


def send(number):
    headers = {"x-message-id": f"c{number}", "x-caller": os.environ["CALLER"], "x-key": f"s{number % 4}"}
    provider = http.client.HTTPConnection(os.environ["PROVIDER"])
    provider.request("POST", "/send", headers=headers)
    if provider.getresponse().status != 202:
        raise RuntimeError("not taken")


# A denial that counted as a retry would be the last, and so would one that `retry_when` decides about.
RULES = [{"max_retries": 0}, {"retry_when": lambda tries, error: False}]
actors = [
    dramatiq.actor(send, actor_name=f"send{number}", queue_name=os.environ["QUEUE"],
                   permit_keys=lambda number: {"sender": f"s{number % 4}"}, **rules)
    for number, rules in enumerate(RULES)
]

if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        actors[number // 2 % 2].send(number)
