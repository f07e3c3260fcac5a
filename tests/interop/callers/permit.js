// A permit of sluiced, with the standard library.
const http = require('node:http');

// The sockets of this machine's replicas: where one is gone, the next one is asked.
const SOCKETS = (process.env.SLUICED_SOCKETS || '/run/sluiced/callers.sock').split(':');
const agent = new http.Agent({ keepAlive: true });

function request(socketPath, method, path, body) {
  return new Promise((resolve, reject) => {
    const headers = { 'Content-Type': 'application/json' };
    const sent = http.request({ agent, socketPath, method, path, headers, timeout: 40_000 }, (answer) => {
      let text = '';
      answer.on('data', (part) => { text += part; });
      answer.on('error', reject);
      answer.on('end', () => {
        try {
          const seconds = Number(answer.headers['retry-after'] || 1);
          resolve({ status: answer.statusCode, seconds, said: JSON.parse(text) });
        } catch (error) { reject(error); }
      });
    });
    sent.on('timeout', () => sent.destroy(new Error('no answer')));
    sent.on('error', reject);
    sent.end(body && JSON.stringify(body));
  });
}

// Waits for a turn: `end` ends the permit, `seconds` says when to ask again.
async function ask(wanted) {
  let seconds = 1;
  for (const socket of [...SOCKETS, ...SOCKETS, ...SOCKETS]) {
    const asked = performance.now();
    const answer = await request(socket, 'POST', '/v1/permits', wanted).catch(() => ({ status: 0 }));
    if (answer.status === 200) {
      const { id, waited_ms: waited, use_within_ms: within } = answer.said;
      const end = (how) => request(socket, 'DELETE', `/v1/permits/${id}${how}`).catch(() => {});
      // The call could come too late. A quarter of the time is for its way.
      if (performance.now() - asked - waited > 0.75 * within) await end('?unused=true');
      else return { end };
    } else if (answer.status === 429) {
      return { seconds: answer.seconds };
    } else if (answer.status === 503) {
      seconds = answer.seconds;
    } else if (answer.status !== 0) {
      throw new Error(answer.said.error);
    }
  }
  return { seconds };
}

module.exports = { ask };
