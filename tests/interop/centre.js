// A message centre made of the library `smpp` of npm. It prints a line of JSON for each thing that happens, first
// the port that it listens on.
const smpp = require('smpp');

const say = (what) => console.log(JSON.stringify(what));
let count = 0;
let hasThrottled = false;

const server = smpp.createServer((session) => {
  session.on('error', (error) => say({ error: error.message }));
  session.on('bind_transceiver', (pdu) => {
    const fine = pdu.system_id === 'account' && pdu.password === 'secret';
    session.send(pdu.response({ command_status: fine ? 0 : smpp.ESME_RBINDFAIL, system_id: 'centre' }));
  });
  session.on('submit_sm', (pdu) => {
    const { message, udh } = pdu.short_message;
    if (message === 'later' && !hasThrottled) {
      hasThrottled = true;
      say({ throttled: true });
      session.send(pdu.response({ command_status: smpp.ESME_RTHROTTLED }));
      return;
    }
    count += 1;
    const id = `npm-${count}`;
    say({
      submit: id,
      source: [pdu.source_addr, pdu.source_addr_ton, pdu.source_addr_npi],
      destination: [pdu.destination_addr, pdu.dest_addr_ton, pdu.dest_addr_npi],
      text: message,
      part: udh ? [...udh[0].subarray(-2)] : null,
    });
    session.send(pdu.response({ message_id: id }));
    session.deliver_sm(
      {
        source_addr: pdu.destination_addr,
        destination_addr: pdu.source_addr,
        esm_class: 4,
        short_message: `id:${id} sub:001 dlvrd:001 submit date:2601010000 done date:2601010001 stat:DELIVRD err:000 text:`,
      },
      (answer) => say({ receipt: id, status: answer.command_status }),
    );
  });
  session.on('enquire_link', (pdu) => session.send(pdu.response()));
  session.on('unbind', (pdu) => {
    say({ unbind: true });
    session.send(pdu.response());
    session.close();
  });
});
server.listen(0, '127.0.0.1', () => say({ port: server.address().port }));
