//! TLS for connections: rustls, with this machine's authorities.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_rustls::{TlsConnector, client};

use super::guarded::{Guard, Guarded};
use super::location::{Location, TlsMode};
use crate::error::{Error, ErrorKind, Result};

/// Makes TLS connections; one for all connections of an engine.
#[derive(Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    /// Checks the first bytes of each connection.
    guard: Guard,
}

impl Tls {
    /// Sets TLS up as `location` asks.
    pub fn new(location: &Location) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Invalid, format!("TLS to {location}: {what}: {error}"))
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed("protocol versions", &error))?;
        let config = if location.tls == TlsMode::VerifyFull {
            let mut roots = RootCertStore::empty();
            match &location.root_certificates {
                Some(path) => {
                    let certificates = CertificateDer::pem_file_iter(path)
                        .map_err(|error| failed(&format!("sslrootcert {}", path.display()), &error))?;
                    for certificate in certificates {
                        let certificate = certificate
                            .map_err(|error| failed(&format!("sslrootcert {}", path.display()), &error))?;
                        roots.add(certificate).map_err(|error| failed("sslrootcert", &error))?;
                    }
                }
                None => {
                    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                }
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        } else {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
                .with_no_client_auth()
        };
        // `require` means that the server is trusted.
        let guard = if location.tls == TlsMode::Prefer { Guard::SECURED } else { Guard::Off };
        Ok(Self { config: Arc::new(config), guard })
    }
}

/// Accepts every certificate (`sslmode=require` and `prefer`, as in libpq): against listeners, not
/// against impostors.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = Guarded<client::TlsStream<S>>;
    type TlsConnect = Handshake;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, domain: &str) -> std::result::Result<Handshake, Self::Error> {
        // Asked for a socket's, too, which has none, and is never secured.
        let name = if domain.is_empty() { "localhost" } else { domain };
        Ok(Handshake {
            connector: TlsConnector::from(Arc::clone(&self.config)),
            guard: self.guard,
            name: ServerName::try_from(name)?.to_owned(),
        })
    }
}

/// One handshake to be made.
pub(super) struct Handshake {
    connector: TlsConnector,
    guard: Guard,
    name: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = Guarded<client::TlsStream<S>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Stream>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let stream = self.connector.connect(self.name, stream).await?;
            Ok(Guarded { stream, guard: self.guard })
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Guarded<client::TlsStream<S>> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
