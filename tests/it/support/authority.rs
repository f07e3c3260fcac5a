//! A private authority that signs certificates for 127.0.0.1.

use std::fs;
use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, DnValue, ExtendedKeyUsagePurpose,
    IsCa, KeyPair,
};
use tempfile::TempDir;

/// Signs for servers and clients. Its own certificate is the file `ca.pem`.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

/// A certificate and its key, as PEM.
#[derive(Debug)]
pub struct Signed {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // If both had the same name, the signed certificate would look self-signed.
        let name = DnValue::Utf8String("a private authority".to_owned());
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    /// A file of its directory.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Its certificate, as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a server on 127.0.0.1, beside `ca.pem` as `server.pem` and `server.key` too.
    pub fn server(&self) -> Signed {
        self.server_named("127.0.0.1")
    }

    /// The same, for a server with that name.
    pub fn server_named(&self, name: &str) -> Signed {
        let signed = self.sign(name, ExtendedKeyUsagePurpose::ServerAuth);
        fs::write(self.file("server.pem"), &signed.certificate).unwrap();
        fs::write(self.file("server.key"), &signed.key).unwrap();
        signed
    }

    /// A certificate for a client.
    #[must_use]
    pub fn client(&self) -> Signed {
        self.sign("127.0.0.1", ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> Signed {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![purpose];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Signed {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}
