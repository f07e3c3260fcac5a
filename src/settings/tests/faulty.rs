use super::{GOOD, changed, lines, said};
#[test]
fn look() {
    let p = |t: &str| eprintln!("{}\n------", said(&[t], &[]));
    p(
        "[redis]\nurl = 5\n[limits.provider]\nrate = \"400\"\nheadrom = \"5ms\"\n[routes.sms]\nqueue = \"sms\"\nlimits = \"provider\"\nprefetch = \"many\"\n\n[routes.sms.downstream]\nurl = \"ftp://x\"\ntimeout = 10\n",
    );
    p(&GOOD.replace("\"400/1s\"", "400/1s"));
    p(&GOOD.replace("[\"provider\"]", "[\"provider\""));
    p(&GOOD.replace("[routes.sms]", "[routes.sms"));
    p(&GOOD
        .replace("\"sms\"", "\"sms")
        .replace("http://", "ftp://"));
    p(&GOOD.replace("[routes.sms]", "[routes.sms]\nqueue = \"a\""));
    p(&GOOD.replace("400/1s", "4/1h"));
    p(&GOOD.replace("[\"provider\"]", "[\"provder\"]"));
    p(&GOOD.replace("[\"provider\"]", "[\"provider\"]\nprefetch = 20"));
    p(&GOOD.replace("kind = \"http\"", "kind = \"htp\"\nfoo = 1"));
    p(&GOOD.replace("kind = \"http\"\n", ""));
    p("limits = 5\nroutes = 6\nrabbitmq = 1\nx = 1.5\n");
    p("\u{feff}= 1\n");
    p("a = '''\n");
    let _ = (lines(&[], &[]), changed("sms", "sms"));
}
