//! A certificate authority for one test, and its certificates.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// Certifies servers and clients. Its files are in a folder of their own, which is removed with it.
pub struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in files.
pub struct Certified {
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
}

impl Authority {
    pub fn new() -> Authority {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("authority-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("the build's scratch space is writable");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, "Authority");
        let key = KeyPair::generate().expect("there is chance enough");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("the form is right");
        fs::write(folder.join("ca.pem"), issuer.pem()).expect("the folder is writable");
        Authority { folder, issuer }
    }

    /// Returns the path of its own certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Returns the folder with all its files, including keys.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn certificate(&self) -> CertificateDer<'static> {
        self.issuer.as_ref().der().clone()
    }

    /// Returns its own certificate and key. The certificate has signed itself, and may issue others.
    pub fn itself(&self) -> Certified {
        let key_file = self.folder.join("ca.key");
        fs::write(&key_file, self.issuer.key().serialize_pem()).expect("the folder is writable");
        Certified { certificate_file: self.file(), key_file }
    }

    pub fn certify_server(&self, name: &str) -> Certified {
        self.certify(name, ExtendedKeyUsagePurpose::ServerAuth, &[])
    }

    pub fn certify_client(&self, name: &str) -> Certified {
        self.certify(name, ExtendedKeyUsagePurpose::ClientAuth, &[])
    }

    /// Makes a client certificate with URIs among its alternative names.
    pub fn certify_client_with_uris(&self, name: &str, uris: &[&str]) -> Certified {
        self.certify(name, ExtendedKeyUsagePurpose::ClientAuth, uris)
    }

    fn certify(&self, name: &str, usage: ExtendedKeyUsagePurpose, uris: &[&str]) -> Certified {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("it is a name");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        params
            .subject_alt_names
            .extend(uris.iter().map(|uri| SanType::URI((*uri).try_into().expect("it is plain text"))));
        let key = KeyPair::generate().expect("there is chance enough");
        let certificate = params.signed_by(&key, &self.issuer).expect("the form is right");
        let certified = Certified {
            certificate_file: self.folder.join(format!("{name}.crt")),
            key_file: self.folder.join(format!("{name}.key")),
        };
        fs::write(&certified.certificate_file, certificate.pem()).expect("the folder is writable");
        fs::write(&certified.key_file, key.serialize_pem()).expect("the folder is writable");
        certified
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        // A leftover is in the build's scratch space and does no harm.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Certified {
    pub fn certificates(&self) -> Vec<CertificateDer<'static>> {
        vec![CertificateDer::from_pem_file(&self.certificate_file).expect("it was written here")]
    }

    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(&self.key_file).expect("it was written here")
    }
}
