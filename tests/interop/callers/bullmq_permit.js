// A processor that waits for its turn: `new Worker(queue, permitted(call, (data) => keys), …)`.
const { DelayedError } = require('bullmq');
const { ask } = require('./permit.js');

const permitted = (call, keys = () => ({})) => async (job, token) => {
  const turn = await ask({ keys: keys(job.data) });
  if (!turn.end) {
    await job.moveToDelayed(Date.now() + 1000 * turn.seconds, token);
    throw new DelayedError(); // no attempt is counted
  }
  try {
    return await call(job);
  } finally {
    turn.end('');
  }
};

module.exports = { permitted };
