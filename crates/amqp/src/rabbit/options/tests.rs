//! How URLs of the broker are read, and that no password is shown.

use super::*;

#[test]
fn addresses_hide_passwords() {
    let options = RabbitOptions::single("amqp://me:hidden@broker:5673/%2f".into());
    let parsed = addresses(&options).unwrap_or_default();
    assert_eq!(format!("{parsed:?}"), "[broker:5673]");
    assert!(!format!("{options:?}").contains("hidden"));
    let wrong = RabbitOptions::single("http://me:hidden@broker".into());
    let error = addresses(&wrong)
        .map(drop)
        .map_err(|error| error.to_string());
    assert!(error.is_err_and(|text| !text.contains("hidden")));
}

/// URLs as an operator may write them, without a scheme or with a wrong one.
#[test]
fn a_url_that_is_none_is_not_shown() {
    for wrong in [
        "guest:s3cret@broker:5672/%2f",
        "amqp:guest:s3cret@broker",
        "s3cret://broker",
        "amqp://guest:s3cret@broker:port",
        "amqp://guest:s3cret@[broker",
        "//guest:s3cret@broker",
    ] {
        let options = RabbitOptions::single(wrong.into());
        let error = addresses(&options).map(drop).unwrap_err().to_string();
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[test]
fn an_address_of_ipv6_is_one() {
    let url = "amqp://guest:s3cret@[2001:db8::5]:5673";
    let options = RabbitOptions::single(url.into());
    let address = &addresses(&options).unwrap()[0];
    assert_eq!(address.uri.authority.host, "2001:db8::5");
    assert_eq!(address.host, "[2001:db8::5]:5673");
}
