//! Which certificates that are their own authority are trusted, and why others are refused.

use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, date_time_ymd};

use super::*;

/// As `openssl req -x509` makes it: signed by itself, and allowed to sign others.
fn of_openssl(names: &[&str], common_name: &str) -> CertificateParams {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params
}

fn signed(params: &CertificateParams) -> rcgen::Certificate {
    params.self_signed(&KeyPair::generate().unwrap()).unwrap()
}

fn trusting(pem: &str) -> Trust {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Trust::of(Some(pem.as_bytes()), false, provider).unwrap()
}

/// On 26 November 2026.
fn now() -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(1_795_700_000))
}

fn judged(trust: &Trust, shown: &rcgen::Certificate, name: &'static str) -> Result<(), String> {
    let name = ServerName::try_from(name).unwrap();
    let judged = trust.verify_server_cert(shown.der(), &[], &name, &[], now());
    judged.map(drop).map_err(|error| words(&error))
}

#[test]
fn a_certificate_that_is_its_own_authority_is_good_for_its_names() {
    let own = signed(&of_openssl(&["redis.internal", "10.0.0.7"], "cache"));
    let trust = trusting(&own.pem());
    assert_eq!(judged(&trust, &own, "redis.internal"), Ok(()));
    assert_eq!(judged(&trust, &own, "10.0.0.7"), Ok(()));
    let said = judged(&trust, &own, "other.internal").unwrap_err();
    assert_eq!(
        said,
        "the server's certificate is for redis.internal, 10.0.0.7, and not for other.internal"
    );
    // Where it has other names, its common name does not count.
    assert!(judged(&trust, &own, "cache").is_err());
}

#[test]
fn without_other_names_its_common_name_counts() {
    for name in ["localhost", "127.0.0.1"] {
        let own = signed(&of_openssl(&[], name));
        let trust = trusting(&own.pem());
        assert_eq!(judged(&trust, &own, name), Ok(()));
        let said = judged(&trust, &own, "elsewhere").unwrap_err();
        assert!(said.contains("names no host"), "{said}");
    }
    // The same, where it may not sign others.
    let mut leaf = of_openssl(&[], "localhost");
    leaf.is_ca = IsCa::ExplicitNoCa;
    let leaf = signed(&leaf);
    assert_eq!(judged(&trusting(&leaf.pem()), &leaf, "localhost"), Ok(()));
}

#[test]
fn it_must_be_the_very_same_one() {
    let key = KeyPair::generate().unwrap();
    let params = of_openssl(&["localhost"], "own");
    let own = params.self_signed(&key).unwrap();
    let trust = trusting(&own.pem());
    // The same subject and key, and another serial number or time.
    let mut other = params.clone();
    other.not_after = date_time_ymd(2030, 1, 1);
    let other = other.self_signed(&key).unwrap();
    let said = judged(&trust, &other, "localhost").unwrap_err();
    assert!(said.contains("that of an authority"), "{said}");
    let stranger = signed(&params);
    assert!(judged(&trust, &stranger, "localhost").is_err());
}

#[test]
fn it_must_be_in_its_time() {
    let mut old = of_openssl(&["localhost"], "own");
    old.not_before = date_time_ymd(2020, 1, 1);
    old.not_after = date_time_ymd(2026, 11, 20);
    let old = signed(&old);
    assert_eq!(
        judged(&trusting(&old.pem()), &old, "localhost").unwrap_err(),
        "the server's certificate expired on 2026-11-20 at 00:00 UTC"
    );
    let mut young = of_openssl(&["localhost"], "own");
    young.not_before = date_time_ymd(2027, 1, 1);
    let young = signed(&young);
    assert_eq!(
        judged(&trusting(&young.pem()), &young, "localhost").unwrap_err(),
        "the server's certificate is valid only from 2027-01-01 at 00:00 UTC; is the clock of this machine right?"
    );
}

#[test]
fn another_authority_is_said_in_words() {
    let mut leaf = of_openssl(&["localhost"], "own");
    leaf.is_ca = IsCa::ExplicitNoCa;
    let (known, shown) = (signed(&of_openssl(&["a"], "a")), signed(&leaf));
    let said = judged(&trusting(&known.pem()), &shown, "localhost").unwrap_err();
    assert!(
        said.contains("an authority that is not trusted here"),
        "{said}"
    );
}

#[test]
fn what_is_no_certificate_is_refused_at_once() {
    for (pem, said) in [
        (
            "",
            "it has no certificate that can be trusted: there is none",
        ),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "it has no certificate that can be trusted: ",
        ),
    ] {
        let error = client_config(Some(pem.as_bytes()), None, false).unwrap_err();
        assert!(error.to_string().starts_with(said), "{error}");
    }
}
