"""A message centre made of the library `smpp.twisted3` of PyPI. As `centre.js` it prints a line of JSON for each thing
that happens, first the port that it listens on."""
import json
import logging

from smpp.pdu import constants
from smpp.pdu.operations import DeliverSM
from smpp.pdu.pdu_types import (
    CommandStatus,
    DataCodingDefault,
    EsmClass,
    EsmClassGsmFeatures,
    EsmClassMode,
    EsmClassType,
)
from smpp.twisted.config import SMPPServerConfig
from smpp.twisted.protocol import DataHandlerResponse, SMPPServerProtocol
from smpp.twisted.server import SMPPServerFactory
from twisted.cred.error import UnauthorizedLogin
from twisted.internet import reactor
from twisted.python import log

# What the texts of the test have of the extension table (GSM 03.38); the library reads ASCII.
EXTENSION = {b"\x1be": "€", b"\x1b(": "{", b"\x1b)": "}"}


def say(what):
    print(json.dumps(what), flush=True)


class Errors(logging.Handler):
    """What the library cannot use."""

    def emit(self, record):
        say({"error": record.getMessage()})


class Accounts:
    def login(self, credentials, _mind, interface):
        if (credentials.username, credentials.password) != ("account", "secret"):
            raise UnauthorizedLogin()
        return interface, None, lambda: None


class Protocol(SMPPServerProtocol):
    def onPDURequest_unbind(self, reqPDU):
        say({"unbind": True})
        super().onPDURequest_unbind(reqPDU)


def address(params, which, kind):
    ton = constants.addr_ton_name_map[params[f"{kind}_addr_ton"].name]
    npi = constants.addr_npi_name_map[params[f"{kind}_addr_npi"].name]
    return [params[which].decode("ascii"), ton, npi]


def text_of(octets, coding):
    if coding.schemeData == DataCodingDefault.UCS2:
        return octets.decode("utf-16-be")
    text = octets.decode("ascii")
    for pair, character in EXTENSION.items():
        text = text.replace(pair.decode("ascii"), character)
    return text


class Centre:
    def __init__(self):
        self.count = 0
        self.has_throttled = False

    def taken(self, _system_id, session, pdu):
        params = pdu.params
        octets, part = params["short_message"], None
        if EsmClassGsmFeatures.UDHI_INDICATOR_SET in params["esm_class"].gsmFeatures:
            end = octets[0] + 1
            part, octets = list(octets[end - 2 : end]), octets[end:]
        text = text_of(octets, params["data_coding"])
        if text == "later" and not self.has_throttled:
            self.has_throttled = True
            say({"throttled": True})
            return CommandStatus.ESME_RTHROTTLED
        self.count += 1
        name = f"twisted-{self.count}"
        source = address(params, "source_addr", "source")
        destination = address(params, "destination_addr", "dest")
        say({"submit": name, "source": source, "destination": destination, "text": text, "part": part})
        reactor.callLater(0, self.report, session, params, name)
        return DataHandlerResponse(CommandStatus.ESME_ROK, message_id=name)

    def report(self, session, params, name):
        receipt = DeliverSM(
            source_addr=params["destination_addr"],
            destination_addr=params["source_addr"],
            esm_class=EsmClass(EsmClassMode.DEFAULT, EsmClassType.SMSC_DELIVERY_RECEIPT),
            short_message=f"id:{name} sub:001 dlvrd:001 submit date:2601010000 done date:2601010001"
            " stat:DELIVRD err:000 text:".encode("ascii"),
        )

        def answered(result):
            status = constants.command_status_name_map[result.response.status.name]
            say({"receipt": name, "status": status})

        def failed(failure):
            say({"error": failure.getErrorMessage()})

        session.sendDataRequest(receipt).addCallbacks(answered, failed)


logging.getLogger().addHandler(Errors(logging.ERROR))
log.PythonLoggingObserver().start()
config = SMPPServerConfig(systems={"account": {"max_bindings": 2}}, msgHandler=Centre().taken)
factory = SMPPServerFactory(config, auth_portal=Accounts())
factory.protocol = Protocol
say({"port": reactor.listenTCP(0, factory, interface="127.0.0.1").getHost().port})
reactor.run()
