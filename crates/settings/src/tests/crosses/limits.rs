//! Names, headrooms and horizons of limits.

use super::above;
use crate::tests::changed;

#[test]
fn names_and_users() {
    assert_eq!(
        above(
            "[limits.\"a b\"]\nrate = \"1/1s\"\n[limits.unused]\nrate = \"4/1ms\"\nheadroom = \"1ms\""
        ),
        [
            "a.toml:1:9: limits.\"a b\": this name does not work; write letters, digits, `_`, `-` and `.`",
            "a.toml:1:9: warning: limits.\"a b\": no route uses this limit; name it in `routes.sms.limits` or take it out",
            "a.toml:3:9: warning: limits.unused: no route uses this limit; name it in `routes.sms.limits` or take it out",
            "a.toml:5:12: limits.unused.headroom: 1ms is half of the window of 1ms or more, and would cost as much of the rate; write less than 500us"
        ]
    );
}

/// A route without a paced limit has such a name in metrics.
#[test]
fn no_limit_has_the_name_of_a_route() {
    let faults =
        above("[limits.\"route.sms\"]\nrate = \"1/1s\"\nkind = \"gcra\"\nkey = \"{{ body.to }}\"");
    let message = "names that begin with `route.` stand for routes without a paced limit; give the limit another name";
    let named = format!("a.toml:1:9: limits.\"route.sms\": {message}");
    assert!(faults.contains(&named), "{faults:?}");
}

#[test]
fn thin_headroom_long_horizon() {
    assert_eq!(
        changed(
            "rate = \"400/1s\"",
            "rate = \"400/1s\"\nheadroom = \"1ms\"\nhorizon = \"2s\""
        ),
        [
            "a.toml:3:12: warning: limits.provider.headroom: 1ms is less than a busy machine can keep: calls come late and slots are dropped; write 2ms or more, 5ms is good",
            "a.toml:4:11: limits.provider.horizon: `2s` is out of range; write 20ms to 1s"
        ]
    );
}

#[test]
fn horizon_against_headroom() {
    assert_eq!(
        changed(
            "rate = \"400/1s\"",
            "rate = \"400/10s\"\nheadroom = \"100ms\""
        ),
        [] as [&str; 0]
    );
    assert_eq!(
        changed(
            "rate = \"400/1s\"",
            "rate = \"400/10s\"\nheadroom = \"100ms\"\nhorizon = \"120ms\""
        ),
        [
            "a.toml:4:11: limits.provider.horizon: 120ms is less than four times the headroom of 100ms; write 400ms or more, or take horizon out"
        ]
    );
}

#[test]
fn headroom_beyond_any_horizon() {
    assert_eq!(
        changed(
            "rate = \"400/1s\"",
            "rate = \"400/10s\"\nheadroom = \"1s\"\nhorizon = \"1s\""
        ),
        [
            "a.toml:3:12: limits.provider.headroom: 1s asks for a horizon of four times as much, more than the longest one; write 250ms or less"
        ]
    );
}

#[test]
fn headroom_against_window() {
    assert_eq!(
        changed(
            "rate = \"400/1s\"",
            "rate = \"400/1s\"\nheadroom = \"500ms\""
        ),
        [
            "a.toml:3:12: limits.provider.headroom: 500ms is half of the window of 1s or more, and would cost as much of the rate; write less than 500ms",
            "a.toml:3:12: limits.provider.headroom: 500ms asks for a horizon of four times as much, more than the longest one; write 250ms or less"
        ]
    );
}
