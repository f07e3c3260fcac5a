// BullMQ with the limiter of its workers, which is shared by all workers of a queue.
//
// `publish N` fills the queue; `work` is one worker. BullMQ keeps its queue in Redis, so there is no RabbitMQ here.
// (CommonJS: modules are found through NODE_PATH only this way.)
"use strict";

const http = require("node:http");
const { Queue, Worker } = require("bullmq");
const Redis = require("ioredis");

const QUEUE = "work";
// Jobs that one worker has under way.
const CONCURRENCY = 10;
const limit = Number(process.env.PEERS_LIMIT);
// A worker waits for jobs with a blocking command; BullMQ asks for this setting.
const connection = new Redis(process.env.PEERS_REDIS, { maxRetriesPerRequest: null });
const agent = new http.Agent({ keepAlive: true });

function call(text) {
  return new Promise((done, failed) => {
    const request = http.request(process.env.PEERS_PROVIDER, { method: "POST", agent }, (answer) => {
      answer.resume();
      answer.on("end", () => (answer.statusCode < 300 ? done() : failed(new Error(`status ${answer.statusCode}`))));
    });
    request.on("error", failed);
    request.end(text);
  });
}

async function publish(count) {
  const queue = new Queue(QUEUE, { connection });
  const jobs = Array.from({ length: count }, (_, number) => ({
    name: "send",
    data: { id: `message-${String(number).padStart(6, "0")}`, to: "+4915550000001", text: "Hello" },
    opts: { removeOnComplete: true },
  }));
  await queue.addBulk(jobs);
  await queue.close();
  connection.disconnect();
}

function work() {
  new Worker(QUEUE, (job) => call(JSON.stringify(job.data)), {
    connection,
    concurrency: CONCURRENCY,
    limiter: { max: limit, duration: 1000 },
  });
}

if (process.argv[2] === "publish") publish(Number(process.argv[3]));
else work();
