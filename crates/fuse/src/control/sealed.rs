//! Conversations with agents on other hosts, encrypted: TLS 1.3 without certificates.
//!
//! A mount makes a key pair when it begins to offer its open files. The registry record with its
//! address has the public key (`remote.rs`), and a client talks only to a peer that has the private
//! one. Only a client that may write to the database can write that record. So both ends know each
//! other by the database alone: nothing has to be issued, exchanged or renewed. A role that may
//! only read the database finds nothing of use there.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock as clock;
use outrigger_clock::Instant;
use outrigger_store::{Error, ErrorKind, Result};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, ConnectionCommon, DigitallySignedStruct, ServerConfig,
    ServerConnection, SignatureScheme, StreamOwned,
};
use serde::{Deserialize, Serialize};

/// The bytes before the 32 bytes of an Ed25519 key in PKCS#8 (RFC 8410).
const PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// A mount's key.
pub(super) struct Identity {
    config: Arc<ServerConfig>,
    public: Vec<u8>,
}

impl Identity {
    /// A new key pair.
    ///
    /// # Errors
    /// When there are no random bytes.
    pub fn new() -> Result<Self> {
        let failed = |error: rustls::Error| Error::new(ErrorKind::Io, "making a key").caused_by(error);
        let secret = [&PKCS8[..], &clock::random::<32>()?].concat();
        let key = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(secret)).map_err(failed)?;
        let public = key.public_key().map(|public| public.to_vec()).unwrap_or_default();
        let certified = CertifiedKey::new(vec![CertificateDer::from(public.clone())], key);
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(certified))));
        // Each conversation begins anew.
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), public })
    }

    /// The public half.
    pub fn key(&self) -> PublicKey {
        PublicKey(self.public.clone())
    }

    /// The mount's end of a conversation.
    ///
    /// # Errors
    /// Those of the connection, `TimedOut` when it takes longer than `within`, and when the peer is
    /// no client.
    pub fn accept(&self, socket: TcpStream, within: Duration) -> io::Result<Sealed> {
        let tls = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        Sealed::begin(tls, socket, within)
    }
}

/// By which a mount is known.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PublicKey(Vec<u8>);

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for PublicKey {
    type Error = &'static str;

    fn try_from(text: String) -> std::result::Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not the key of a mount")
    }
}

impl PublicKey {
    /// From hexadecimal digits.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes().chunks(2).map(|pair| {
            let is_one = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
            let pair = std::str::from_utf8(pair).ok().filter(|_| is_one)?;
            u8::from_str_radix(pair, 16).ok()
        });
        digits.collect::<Option<Vec<u8>>>().filter(|key| !key.is_empty()).map(Self)
    }

    /// A client's end of a conversation with the owner of the private key.
    ///
    /// # Errors
    /// Those of the connection, `TimedOut` when it takes longer than `within`, and `InvalidData`
    /// for any other peer.
    pub(super) fn connect(&self, socket: TcpStream, within: Duration) -> io::Result<Sealed> {
        let provider = Arc::new(ring::default_provider());
        let expected = Arc::new(Expected { key: self.0.clone(), provider: Arc::clone(&provider) });
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(expected)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        let name = ServerName::from(socket.peer_addr().map_or(IpAddr::from([0; 4]), |peer| peer.ip()));
        let tls = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        Sealed::begin(tls, socket, within)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

/// Accepts one key.
#[derive(Debug)]
struct Expected {
    key: Vec<u8>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        if end_entity.as_ref() == self.key {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(certificate.as_ref());
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

trait Talk: Read + Write + Send {}

impl<T: Read + Write + Send> Talk for T {}

/// One end of a conversation.
pub struct Sealed {
    talk: Box<dyn Talk>,
    socket: TcpStream,
}

impl Sealed {
    fn begin<Tls, Side>(mut tls: Tls, socket: TcpStream, within: Duration) -> io::Result<Self>
    where
        Tls: std::ops::DerefMut<Target = ConnectionCommon<Side>> + Send + 'static,
        Side: rustls::SideData,
    {
        let until = Instant::now() + within;
        while tls.is_handshaking() {
            tls.complete_io(&mut Until { socket: &socket, until })?;
        }
        let known = socket.try_clone()?;
        known.set_read_timeout(Some(within))?;
        Ok(Self { talk: Box::new(StreamOwned::new(tls, socket)), socket: known })
    }

    /// Waits no longer than this for bytes.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub fn set_read_timeout(&self, most: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(most)
    }

    /// Another descriptor of the connection, to end it by.
    pub(super) fn socket(&self) -> io::Result<TcpStream> {
        self.socket.try_clone()
    }
}

impl Read for Sealed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.talk.read(buf)
    }
}

impl Write for Sealed {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.talk.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.talk.flush()
    }
}

/// A connection whose reads together take no longer than this: a peer that sends a byte now and
/// then keeps no thread busy for long.
struct Until<'a> {
    socket: &'a TcpStream,
    until: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket.read(buf)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.socket.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(60);

    /// Both ends of a conversation that a client of `key` begins with the owner of `identity`.
    fn talk(identity: &Identity, key: &PublicKey) -> (io::Result<Sealed>, io::Result<Sealed>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| identity.accept(listener.accept().unwrap().0, WITHIN));
            let client = key.connect(socket, WITHIN);
            (server.join().unwrap(), client)
        })
    }

    #[test]
    fn a_key_is_written_down_and_known_again() {
        let (one, two) = (Identity::new().unwrap().key(), Identity::new().unwrap().key());
        assert_ne!(one, two);
        assert_eq!(PublicKey::parse(&one.to_string()), Some(one));
        for wrong in ["", "1", "xy", "12345", "+1"] {
            assert_eq!(PublicKey::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_said_arrives_with_who_has_the_key_and_nobody_else_is_spoken_to() {
        let (one, two) = (Identity::new().unwrap(), Identity::new().unwrap());
        let (server, client) = talk(&one, &one.key());
        let (mut server, mut client) = (server.unwrap(), client.unwrap());
        let long: Vec<u8> = (0..3_000_000).map(|at| (at % 251) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| server.write_all(&long).unwrap());
            let mut got = vec![0; long.len()];
            client.read_exact(&mut got).unwrap();
            assert!(got == long);
        });
        drop(client);
        let mut byte = [0];
        assert!(matches!(server.read(&mut byte), Ok(0) | Err(_)));
        let (server, client) = talk(&two, &one.key());
        assert_eq!(client.map(drop).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(server.is_err(), "nothing was agreed on");
    }

    #[test]
    fn who_does_not_begin_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let identity = Identity::new().unwrap();
        // The first byte of a beginning, and no more.
        silent.write_all(&[0x16]).unwrap();
        let accepted = identity.accept(listener.accept().unwrap().0, Duration::from_millis(50));
        assert!(accepted.is_err());
    }
}
