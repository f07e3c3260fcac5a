"""A Celery task that waits for its turn: `@app.task(bind=True, acks_late=True)` above `@permitted(…)`."""
import functools

from celery.exceptions import Reject

import permit


def permitted(keys=lambda *args, **kwargs: {}, **wanted):
    def around(call):
        @functools.wraps(call)
        def task(self, *args, **kwargs):
            try:
                turn = permit.ask(keys=keys(*args, **kwargs), **wanted)
            except permit.Denied as denied:
                self.request.retries -= 1  # a denial is no failure
                try:
                    raise self.retry(countdown=denied.seconds)
                except Reject as failed:  # it could not be published again: the broker still has it
                    raise Reject(failed.reason, requeue=True)
            with turn:
                return call(self, *args, **kwargs)
        return task
    return around
