//! How a key signs claims, and which files are no key.

use ring::signature::{ECDSA_P256_SHA256_FIXED, KeyPair as _, UnparsedPublicKey};

use super::*;

/// The key of RFC 7515, appendix A.2, which is no secret.
const RSA: &str = include_str!("rfc7515.pem");
/// Made for this test by OpenSSL.
const P256: &str = include_str!("p256.pem");

fn parts(token: &str) -> (Value, Value, Vec<u8>) {
    let parts: Vec<Vec<u8>> = token
        .split('.')
        .map(|part| BASE64_URL_SAFE_NO_PAD.decode(part).expect("base64url"))
        .collect();
    let json = |part: &[u8]| serde_json::from_slice(part).expect("JSON");
    (json(&parts[0]), json(&parts[1]), parts[2].clone())
}

fn claims(claims: &[(&str, &str)]) -> BTreeMap<String, String> {
    let claims = claims.iter();
    claims
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn wanted<'a>(id: Option<&'a str>, claims: &'a BTreeMap<String, String>) -> Claims<'a> {
    Claims {
        id,
        claims,
        expires: true,
        lifetime: Duration::from_secs(3_000),
    }
}

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

#[test]
fn a_key_of_rsa_signs_as_in_the_rfc() {
    let text = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let signature = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
    let key = SigningKey::read(RSA).expect("a key");
    let signed = key.sign(text.as_bytes()).expect("a signature");
    assert_eq!(BASE64_URL_SAFE_NO_PAD.encode(signed), signature);
}

/// As Apple describes its provider token: kid and alg in the header, iss and iat as claims.
#[test]
fn a_key_of_p256_signs_a_provider_token() {
    let own = claims(&[("iss", "TEAM123456")]);
    let wanted = Claims {
        expires: false,
        ..wanted(Some("ABC123DEFG"), &own)
    };
    let (token, lasts) = sign_claims(&wanted, P256, now()).expect("a token");
    assert_eq!(lasts, Duration::from_secs(2_970));
    let (header, body, signature) = parts(&token);
    assert_eq!(
        header,
        json!({ "alg": "ES256", "kid": "ABC123DEFG", "typ": "JWT" })
    );
    assert_eq!(body, json!({ "iss": "TEAM123456", "iat": 1_799_999_970 }));
    let Ok(SigningKey::P256(key)) = SigningKey::read(P256) else {
        panic!("a key of P-256");
    };
    let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.public_key().as_ref());
    let text = token.rsplit_once('.').expect("three parts").0;
    public.verify(text.as_bytes(), &signature).expect("valid");
}

/// As Google writes the file, and wants the claims for its token server.
#[test]
fn the_file_of_a_service_account_names_key_and_account() {
    let file = json!({
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "k1",
        "private_key": RSA,
        "client_email": "sluiced@p.iam.gserviceaccount.com",
        "token_uri": "https://oauth2.googleapis.com/token",
    });
    let own = claims(&[
        ("aud", "https://oauth2.googleapis.com/token"),
        ("scope", "s"),
    ]);
    let (token, _) = sign_claims(&wanted(None, &own), &file.to_string(), now()).expect("a token");
    let (header, body, _) = parts(&token);
    assert_eq!(header, json!({ "alg": "RS256", "kid": "k1", "typ": "JWT" }));
    assert_eq!(
        body,
        json!({
            "iss": "sluiced@p.iam.gserviceaccount.com",
            "aud": "https://oauth2.googleapis.com/token",
            "scope": "s",
            "iat": 1_799_999_970,
            "exp": 1_800_002_970,
        })
    );
    // What is written has precedence.
    let own = claims(&[("iss", "other")]);
    let (token, _) =
        sign_claims(&wanted(Some("k2"), &own), &file.to_string(), now()).expect("a token");
    let (header, body, _) = parts(&token);
    assert_eq!(
        (&header["kid"], &body["iss"]),
        (&json!("k2"), &json!("other"))
    );
}

#[test]
fn what_is_no_key_is_said_without_a_part_of_it() {
    let public = "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQ==\n-----END PUBLIC KEY-----\n";
    let sec1 = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIA==\n-----END EC PRIVATE KEY-----\n";
    let other = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n";
    for (file, said) in [
        ("", "no private key can be read from it"),
        ("s3cret", "no private key can be read from it"),
        (public, "no private key can be read from it"),
        (sec1, "has the form SEC 1"),
        (other, "its key of RSA or P-256 cannot be used"),
        (
            "{\"token\": \"s3cret\"}",
            "it is JSON without a private_key",
        ),
        (
            "{\"private_key\": \"s3cret\"}",
            "no private key can be read from it",
        ),
    ] {
        let why = check(file).expect_err(said);
        assert!(
            why.contains(said) && why.contains("write the private key as PEM"),
            "{why}"
        );
        assert!(!why.contains("s3cret"), "{why}");
    }
    assert_eq!(check(RSA), Ok(()));
}
