// Messages of the test as jobs of BullMQ. With an argument: publishes so many.
const http = require('node:http');
const { Queue, Worker } = require('bullmq');
const { permitted } = require('./bullmq_permit.js');

const { QUEUE, CALLER, PROVIDER } = process.env;
const connection = { port: Number(new URL(process.env.BROKER).port), maxRetriesPerRequest: null };
const keys = ({ number }) => ({ sender: `s${number % 4}` });

// Made before: the first call of a process would take long.
const agent = new http.Agent({ keepAlive: true });

function send({ data: { number } }) {
  const headers = { 'x-message-id': `c${number}`, 'x-caller': CALLER, 'x-key': `s${number % 4}` };
  return new Promise((resolve, reject) => {
    const call = http.request(`http://${PROVIDER}/send`, { agent, method: 'POST', headers }, (answer) => {
      answer.resume();
      answer.on('end', () => (answer.statusCode === 202 ? resolve() : reject(new Error(answer.statusCode))));
    });
    call.on('error', reject);
    call.end();
  });
}

async function publish(count) {
  const queue = new Queue(QUEUE, { connection });
  // A denial that counted as an attempt would be the last.
  const jobs = [...Array(count).keys()].map((number) => ({ name: 'send', data: { number }, opts: { attempts: 1 } }));
  await queue.addBulk(jobs);
  await queue.close();
}

if (process.argv[2]) publish(Number(process.argv[2]));
else new Worker(QUEUE, permitted(send, keys), { connection, concurrency: 8 });
