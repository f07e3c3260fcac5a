use super::*;

#[test]
fn redirections_are_read() {
    let asked = Address::new("10.0.0.1", 6379);
    let address = |text| Address::redirected(text, &asked).map(|address| address.to_string());
    assert_eq!(address("10.0.0.2:7000").as_deref(), Some("10.0.0.2:7000"));
    assert_eq!(address(":7000").as_deref(), Some("10.0.0.1:7000"));
    assert_eq!(address("?:7000").as_deref(), Some("10.0.0.1:7000"));
    assert_eq!(
        address("2001:db8::1:7000").as_deref(),
        Some("[2001:db8::1]:7000")
    );
    assert_eq!(
        address("node.internal:7000").as_deref(),
        Some("node.internal:7000")
    );
    for text in ["", "host", "host:", "host:70000"] {
        assert_eq!(address(text), None, "{text}");
    }
}

mod sentinel {
    use super::*;

    #[test]
    fn a_sighting_needs_an_address_and_an_epoch() {
        let mut said: HashMap<String, String> = [
            ("ip", "10.0.0.1"),
            ("port", "6379"),
            ("config-epoch", "7"),
            ("flags", "master"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let seen = sighting(&said).expect("a sighting");
        assert_eq!(
            (seen.epoch, seen.primary),
            (7, Address::new("10.0.0.1", 6379))
        );
        said.insert("port".to_owned(), "70000".to_owned());
        assert_eq!(sighting(&said), None);
    }
}
