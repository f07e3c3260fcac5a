//! A downstream over SMPP: where the message centre is, how a message becomes one or more `submit_sm`, and what the
//! answers mean.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU16;
use std::path::PathBuf;

use secrecy::SecretString;
use serde::Deserialize;

use super::http::Breaker;
use crate::fixed_or_template::OctetText;
use crate::forms::templates::{OCTET, TEMPLATE};
use crate::forms::urls::SMPP_URL;
use crate::forms::{SECRET, SMPP_ANSWER, SMPP_GOOD_ANSWER, SYSTEM_ID, SYSTEM_TYPE, TEXT};
use crate::redacted::Redacted;
use crate::schema::Shape::{Flag, List, Named, Section, Whole};
use crate::schema::{SPAN, table, words};
use crate::text::{Length, TemplateText};
use sluiced_template::sms::{Cutting, Encoding, Reference};

table! {
    /// One message, one or more `submit_sm`. Exactly one of `password` and `password_file`.
    #[derive(Clone, Deserialize)]
    pub struct Smpp {
        /// The message centre: smpp:// or smpps:// (TLS).
        url: String = SMPP_URL, Required "smpp://127.0.0.1:2775";
        /// The name of the account, at most 15 octets.
        system_id: String = SYSTEM_ID, Required "account";
        /// The password itself; password_file is better.
        password: Option<SecretString> = SECRET, Apart "…";
        /// The file that holds the password. It is read anew for each bind.
        password_file: Option<PathBuf> = TEXT, Optional "credential:provider";
        /// What some centres want besides: at most 12 octets.
        system_type: String = SYSTEM_TYPE, Default "";
        /// transmitter: for sending. transceiver: also takes what the centre delivers, receipts and messages from phones,
        /// which results.on = ["receipt", "inbound"] publishes.
        bind: SmppBind = SmppBind::SHAPE, Default "transmitter";
        /// Connections of each replica. The centre may allow an account only so many, over all replicas.
        binds: NonZeroU16 = Whole(1..=100), Default 1;
        /// How many submit_sm of a connection may be without an answer. A slot for which no connection has room is lost.
        /// A message of more segments than this is a dead letter, because its segments are sent together.
        window: NonZeroU16 = Whole(1..=10_000), Default 10;
        /// After so long without a word from the centre it is asked whether it is there (enquire_link). Without an
        /// answer within timeout the connection is given up.
        enquire_link: Length = SPAN, Default "30s";
        /// From the slot to the last answer. A longer call is a failed attempt, although the centre may have taken the
        /// message: a repeat is then possible. At most service.grace.
        timeout: Length = SPAN, Default "10s";
        /// How long opening a connection may take, all addresses of the host together, and then its bind.
        connect_timeout: Length = SPAN, Default "5s";
        /// How long a call usually takes. The default prefetch follows from it; it changes no timing.
        latency: Length = SPAN, Default "250ms";
        /// The sender, a template: letters and digits, or a number. At most 20 octets.
        source: TemplateText = TEMPLATE, Required "{{ body.from }}";
        /// The type of the sender's number: a whole number from 0 to 255, or a template that makes one. Absent, by the
        /// address: 5 (alphanumeric) if it has anything but digits; 1 (international) for `+` and digits, sent without
        /// the `+`, and for 9 digits or more; 0 (unknown) for 9 or more that begin with 0; 3 (network specific) for fewer
        /// digits.
        source_ton: Option<OctetText> = OCTET, Optional 5;
        /// The numbering plan of the sender's number. Absent: 1 (ISDN) for a telephone number: of type 1 or 2, or of
        /// type 0 with 9 digits or more; else 0.
        source_npi: Option<OctetText> = OCTET, Optional 0;
        /// The recipient, a template.
        destination: TemplateText = TEMPLATE, Required "{{ body.to }}";
        /// As source_ton.
        dest_ton: Option<OctetText> = OCTET, Optional 1;
        /// As source_npi.
        dest_npi: Option<OctetText> = OCTET, Optional 1;
        /// The text, a template.
        text: TemplateText = TEMPLATE, Required "{{ body.text }}";
        /// How the text is written. auto: in the GSM alphabet if all of it can be, else UCS-2. gsm7 or latin1: always, with
        /// `?` for what the alphabet lacks. ucs2: always. The paced limit of the route counts the segments that follow
        /// from it.
        encoding: SmppEncoding = SmppEncoding::SHAPE, Default "auto";
        /// Whether signs that the alphabet lacks are written as plain ones that look alike: " for “ and ”, ' for ’, - for
        /// –, ... for …, a space for one of another width. With auto a text that becomes UCS-2 all the same keeps its signs.
        transliterate: bool = Flag, Default false;
        /// The number that says how the text is written, where encoding is gsm7, latin1 or ucs2. Absent: 0 for the GSM
        /// alphabet, 3 for Latin 1, 8 for UCS-2.
        data_coding: Option<OctetText> = OCTET, Apart 0;
        /// A text that is longer than one segment. udh: one submit_sm for each segment, joined by a header with a reference
        /// of 8 bits. udh16: the same with 16 bits. payload: one submit_sm with message_payload, and the centre cuts it; it
        /// takes one slot, or the cost of the limit: sms_segments, if the provider counts segments.
        long: SmppLong = SmppLong::SHAPE, Default "udh";
        /// Whether the centre reports what became of a message: 0 never, 1 at its end, 2 if it fails.
        registered_delivery: OctetText = OCTET, Default 0;
        /// A template: how long the centre keeps trying. A duration up to 30 days, or 16 characters as SMPP writes times.
        /// Empty: as long as the centre does it by itself.
        validity: TemplateText = TEMPLATE, Default "";
        /// A template: the service, at most 5 octets.
        service_type: TemplateText = TEMPLATE, Default "";
        /// Optional parameters, templates by their tags. A text that begins with 0x is hexadecimal; where a text must end
        /// with an octet of zero, write \u0000. One that is empty is not sent.
        tlvs: BTreeMap<String, TemplateText> = Named { of: &TEMPLATE, example: "0x1401 = \"{{ body.template_id }}\"" },
            Default {};
        /// Certificates (PEM) to trust in addition to the system's.
        ca_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/ca.pem";
        /// Our own certificate (PEM), for centres that ask for one. Like its key it is read anew for each connection.
        cert_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/client.pem";
        /// The key of cert_file (PEM).
        key_file: Option<PathBuf> = TEXT, Optional "credential:client-key";
        /// When calls stop, because the downstream is away or messages die in a row.
        breaker: Breaker = Section(Breaker::KEYS), Default {};
        /// The meaning of answers: statuses by name ("ESME_RTHROTTLED") or number ("0x58", "88"), "timeout", "connection".
        /// By default: ESME_ROK accepted; ESME_RTHROTTLED and ESME_RMSGQFUL throttled; what is wrong with the message
        /// permanent; everything else transient.
        outcomes: SmppOutcomes = Section(SmppOutcomes::KEYS), Default {};
        /// How long a throttled call waits; a freeze lasts as long, and so does the wait of a message that is held.
        throttle_wait: Length = SPAN, Default "1s";
    }
}

impl Smpp {
    /// How its texts are cut into segments. A `message_payload` is cut by the centre, in the usual way.
    #[must_use]
    pub fn cutting(&self) -> Cutting {
        Cutting {
            encoding: match self.encoding {
                SmppEncoding::Auto => None,
                SmppEncoding::Gsm7 => Some(Encoding::Gsm7),
                SmppEncoding::Latin1 => Some(Encoding::Latin1),
                SmppEncoding::Ucs2 => Some(Encoding::Ucs2),
            },
            transliterate: self.transliterate,
            reference: match self.long {
                SmppLong::Udh | SmppLong::Payload => Reference::Short,
                SmppLong::Udh16 => Reference::Long,
            },
        }
    }

    /// Whether a message becomes a `submit_sm` for each of its segments.
    pub(crate) const fn sends_segments(&self) -> bool {
        !matches!(self.long, SmppLong::Payload)
    }

    /// The cost that counts its segments, as it would be written. `None`: its text is not one expression.
    pub(crate) fn segments_cost(&self) -> Option<String> {
        let text = self.text.as_str().trim();
        let expression = text.strip_prefix("{{")?.strip_suffix("}}")?.trim();
        let is_one = !["{{", "}}", "{%", "{#"]
            .iter()
            .any(|tag| expression.contains(tag));
        let encoding = match self.encoding {
            SmppEncoding::Auto => None,
            SmppEncoding::Gsm7 => Some("encoding=\"gsm7\""),
            SmppEncoding::Latin1 => Some("encoding=\"latin1\""),
            SmppEncoding::Ucs2 => Some("encoding=\"ucs2\""),
        };
        let reference = (self.long == SmppLong::Udh16).then_some("reference=16");
        let plain = self.transliterate.then_some("transliterate=true");
        let options: Vec<&str> = [encoding, reference, plain].into_iter().flatten().collect();
        let in_brackets = match options.is_empty() {
            true => String::new(),
            false => format!("({})", options.join(", ")),
        };
        is_one.then(|| format!("{{{{ {expression} | sms_segments{in_brackets} }}}}"))
    }
}

impl fmt::Debug for Smpp {
    /// Neither the password nor a text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Smpp")
            .field("url", &Redacted(&self.url))
            .field("system_id", &self.system_id)
            .field("bind", &self.bind)
            .field("binds", &self.binds)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

words! {
    /// What a connection is used for.
    pub enum SmppBind {
        Transmitter = "transmitter",
        Transceiver = "transceiver",
    }
}

words! {
    /// How texts are written.
    pub enum SmppEncoding {
        /// In the GSM alphabet if all of it can be, else in UCS-2.
        Auto = "auto",
        Gsm7 = "gsm7",
        /// In ISO 8859-1.
        Latin1 = "latin1",
        Ucs2 = "ucs2",
    }
}

words! {
    /// How a text is sent that is longer than one segment.
    pub enum SmppLong {
        /// In parts with a reference of 8 bits.
        Udh = "udh",
        /// In parts with a reference of 16 bits.
        Udh16 = "udh16",
        /// Whole, as `message_payload`.
        Payload = "payload",
    }
}

table! {
    /// Which answers mean what.
    #[derive(Clone, Debug, Default, Deserialize)]
    pub struct SmppOutcomes {
        /// Delivered.
        accepted: Vec<String> = List(&SMPP_GOOD_ANSWER), Default [];
        /// Not now: spends no attempt. The other calls show whether the message, its key or the whole limit waits.
        throttled: Vec<String> = List(&SMPP_ANSWER), Default [];
        /// Throttled for this message only, for example because of its recipient: it waits for throttle_wait, spends no
        /// attempt, and freezes nothing.
        held: Vec<String> = List(&SMPP_ANSWER), Default [];
        /// May pass later: an attempt, with backoff.
        transient: Vec<String> = List(&SMPP_ANSWER), Default [];
        /// Can never pass: dead letter.
        permanent: Vec<String> = List(&SMPP_ANSWER), Default [];
    }
}
