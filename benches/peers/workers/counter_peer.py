"""A counter in Redis, as teams write it themselves: a fixed window that begins with its first call.

`publish N` fills the queue; `work requeue` and `work poll` are one worker. They differ in what a denial does:
the message goes back to the queue at once, or is kept while the worker asks again every 100 ms.
The sluiced peer uses `publish` too: its queue is the same.
"""

import asyncio
import sys

import aio_pika
import aiohttp
import redis.asyncio
from common import AMQP, LIMIT, PROVIDER, REDIS, Denials, body

QUEUE = "work"
# Messages that one worker has under way.
PREFETCH = 10
POLL_SECONDS = 0.1
# Counts this call, and answers whether the window still had room for it.
COUNTER = """
local calls = redis.call('INCR', KEYS[1])
if calls == 1 then redis.call('PEXPIRE', KEYS[1], 1000) end
return calls <= tonumber(ARGV[1])
"""


async def publish(count):
    async with await aio_pika.connect(AMQP) as connection:
        channel = await connection.channel()
        await channel.declare_queue(QUEUE, durable=True)
        for number in range(count):
            message = aio_pika.Message(
                body(number).encode(),
                content_type="application/json",
                message_id=str(number),
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            await channel.default_exchange.publish(message, QUEUE)


async def work(on_denied):
    denials = Denials()
    denials.start()
    store = redis.asyncio.from_url(REDIS)
    counter = store.register_script(COUNTER)
    async with await aio_pika.connect(AMQP) as connection, aiohttp.ClientSession() as http:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.declare_queue(QUEUE, durable=True)

        async def handle(message):
            while not await counter(keys=["calls"], args=[LIMIT]):
                denials.add()
                if on_denied == "requeue":
                    await message.nack(requeue=True)
                    return
                await asyncio.sleep(POLL_SECONDS)
            async with http.post(PROVIDER, data=message.body) as answer:
                answer.raise_for_status()
            await message.ack()

        await queue.consume(handle)
        await asyncio.Future()


if __name__ == "__main__":
    if sys.argv[1] == "publish":
        asyncio.run(publish(int(sys.argv[2])))
    else:
        asyncio.run(work(sys.argv[2]))
