"""Dramatiq actors that wait for their turn: `broker.add_middleware(Permits())`, `@dramatiq.actor(permit_keys=…)`."""
import dramatiq
from dramatiq.middleware import MiddlewareError

import permit


class Later(MiddlewareError, dramatiq.errors.Retry):
    """Dramatiq calls the actor whatever a middleware raises, unless it is a MiddlewareError."""


class Permits(dramatiq.Middleware):
    actor_options = {"permit_keys"}

    def after_declare_actor(self, broker, actor):
        wanted = actor.options.get("retry_when")
        if wanted:  # it would decide about denials, too
            actor.options["retry_when"] = lambda tries, error: isinstance(error, Later) or wanted(tries, error)

    def before_process_message(self, broker, message):
        keys = broker.get_actor(message.actor_name).options.get("permit_keys", lambda *args, **kwargs: {})
        try:
            message.turn = permit.ask(keys=keys(*message.args, **message.kwargs))
        except permit.Denied as denied:
            message.options["retries"] = message.options.get("retries", 0) - 1  # a denial is no failure
            raise Later(delay=1000 * denied.seconds)
        except Exception as wrong:
            raise MiddlewareError(str(wrong))

    def after_process_message(self, broker, message, *, result=None, exception=None):
        if hasattr(message, "turn"):
            message.turn.end()
