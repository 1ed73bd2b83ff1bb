//! The messages over TCP before the game, byte for byte as in rdma-core's programs.
//!
//! The client sends its endpoint, the server connects its QP and answers with its own, and the client
//! confirms. An endpoint is 51 characters of text and a NUL; the confirmation is `done` and a NUL.
//! [`super::meet`] opens the socket. Datagram clients that connect by address send their endpoint in the
//! [`question`], without TCP.

use std::fmt;
use std::io::{self, Read, Write};

use uverbs::Endpoint;

/// Bytes of an endpoint on the wire.
const ENDPOINT: usize = "0000:000000:000000:00000000000000000000000000000000\0".len();

/// The client sends this when it has the server's endpoint.
const DONE: &[u8] = b"done\0";

/// Why the exchange failed.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// The connection broke while this side was writing.
    Write(io::Error),
    /// The connection broke, or nothing arrived in time, after some of the expected bytes.
    Read {
        got: usize,
        expected: usize,
        error: io::Error,
    },
    /// The peer closed the connection after some of the expected bytes.
    Closed { got: usize, expected: usize },
    /// The peer sent something else.
    Nonsense {
        expected: &'static str,
        got: Vec<u8>,
    },
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(error) => write!(f, "cannot send to the peer: {error}"),
            Self::Read {
                got,
                expected,
                error,
            } if is_timeout(error) => write!(
                f,
                "the peer sent only {got} of {expected} bytes of the exchange in time"
            ),
            Self::Read {
                got,
                expected,
                error,
            } => write!(
                f,
                "the connection broke after {got} of {expected} bytes of the exchange: {error}"
            ),
            Self::Closed { got, expected } => write!(
                f,
                "the peer closed the connection after {got} of {expected} bytes of the exchange; \
                 it may have said why"
            ),
            Self::Nonsense { expected, got } => write!(
                f,
                "the peer is no ping-pong: it sent \"{}\" instead of {expected}",
                got.escape_ascii()
            ),
        }
    }
}

impl std::error::Error for ExchangeError {}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Sends an endpoint, in one piece: the C programs read it with one call.
pub(super) fn send_endpoint(to: &mut impl Write, endpoint: &Endpoint) -> Result<(), ExchangeError> {
    to.write_all(format!("{endpoint}\0").as_bytes())
        .map_err(ExchangeError::Write)
}

/// Receives an endpoint.
pub(super) fn receive_endpoint(from: &mut impl Read) -> Result<Endpoint, ExchangeError> {
    let mut message = [0; ENDPOINT];
    receive(from, &mut message)?;
    parse(&message).ok_or_else(|| ExchangeError::Nonsense {
        expected: "LID:QPN:PSN:GID",
        got: message.into(),
    })
}

/// The bytes before the client's endpoint in its question: with InfiniBand addresses the kernel overwrites
/// the first byte, and the second must not look like the start of IP addresses.
const BEFORE: [u8; 2] = [0; 2];

/// The private data with which a datagram client looks up the server by address.
pub(crate) fn question(endpoint: &Endpoint) -> Result<Vec<u8>, ExchangeError> {
    let mut question = BEFORE.to_vec();
    send_endpoint(&mut question, endpoint)?;
    Ok(question)
}

/// The client's endpoint in its question.
pub(crate) fn asked(question: &[u8]) -> Result<Endpoint, ExchangeError> {
    receive_endpoint(&mut question.get(BEFORE.len()..).unwrap_or_default())
}

fn parse(message: &[u8; ENDPOINT]) -> Option<Endpoint> {
    let text = message.strip_suffix(b"\0")?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Sends the client's confirmation.
pub(super) fn send_done(to: &mut impl Write) -> Result<(), ExchangeError> {
    to.write_all(DONE).map_err(ExchangeError::Write)
}

/// Receives the client's confirmation.
pub(super) fn receive_done(from: &mut impl Read) -> Result<(), ExchangeError> {
    let mut message = [0; DONE.len()];
    receive(from, &mut message)?;
    if message == DONE {
        return Ok(());
    }
    Err(ExchangeError::Nonsense {
        expected: "\"done\"",
        got: message.into(),
    })
}

/// Fills the buffer; the error says how many bytes arrived.
fn receive(from: &mut impl Read, into: &mut [u8]) -> Result<(), ExchangeError> {
    let expected = into.len();
    let mut got = 0;
    while got < expected {
        match from.read(&mut into[got..]) {
            Ok(0) => return Err(ExchangeError::Closed { got, expected }),
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(ExchangeError::Read {
                    got,
                    expected,
                    error,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    const TEXT: &[u8; ENDPOINT] = b"0000:000011:a3f2c1:00000000000000000000ffff0a090001\0";

    fn endpoint() -> Endpoint {
        Endpoint {
            lid: 0,
            qpn: 0x11,
            psn: 0xa3f2c1,
            gid: Some("10.9.0.1".parse().unwrap()),
        }
    }

    /// The result of receiving these bytes, after which the peer closes.
    fn receive_all(bytes: &[u8]) -> Result<Endpoint, ExchangeError> {
        let (mut here, mut peer) = UnixStream::pair().unwrap();
        peer.write_all(bytes).unwrap();
        drop(peer);
        receive_endpoint(&mut here)
    }

    #[test]
    fn an_endpoint_goes_over_as_the_c_programs_write_it() {
        let mut wire = Vec::new();
        send_endpoint(&mut wire, &endpoint()).unwrap();
        assert_eq!(wire, TEXT);
        assert_eq!(receive_all(TEXT).unwrap(), endpoint());
    }

    #[test]
    fn an_endpoint_may_come_in_pieces() {
        let (mut here, mut peer) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            for piece in TEXT.chunks(7) {
                peer.write_all(piece).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert_eq!(receive_endpoint(&mut here).unwrap(), endpoint());
        writer.join().unwrap();
    }

    #[test]
    fn half_an_endpoint_is_a_closed_connection() {
        for length in [0, 1, ENDPOINT - 1] {
            match receive_all(&TEXT[..length]) {
                Err(ExchangeError::Closed { got, expected }) => {
                    assert_eq!((got, expected), (length, ENDPOINT));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn nonsense_is_shown() {
        let no_nul = &mut TEXT.clone();
        no_nul[ENDPOINT - 1] = b'0';
        let long_qpn = b"000:0000011:a3f2c1:00000000000000000000ffff0a090001\0";
        let http = b"GET / HTTP/1.1\r\nHost: 10.9.0.1:18515\r\nAccept: */*\r\n\r\n";
        let not_text = &[0xff; ENDPOINT];
        for message in [&no_nul[..], long_qpn, http, not_text] {
            let error = receive_all(message).unwrap_err();
            assert!(matches!(error, ExchangeError::Nonsense { .. }), "{error}");
        }
        let text = receive_all(http).unwrap_err().to_string();
        assert!(text.contains(r#""GET / HTTP/1.1\r\nHost"#), "{text}");
    }

    #[test]
    fn silence_ends() {
        let (mut here, _peer) = UnixStream::pair().unwrap();
        here.set_read_timeout(Some(Duration::from_millis(5)))
            .unwrap();
        let text = receive_endpoint(&mut here).unwrap_err().to_string();
        assert!(text.contains("only 0 of 52 bytes"), "{text}");
    }

    #[test]
    fn the_confirmation_is_held_to_its_bytes() {
        let receive = |mut bytes: &[u8]| receive_done(&mut bytes);
        let mut wire = Vec::new();
        send_done(&mut wire).unwrap();
        assert!(receive(&wire).is_ok());
        assert!(matches!(
            receive(b"done"),
            Err(ExchangeError::Closed { got: 4, .. })
        ));
        assert!(matches!(
            receive(b"dont\0"),
            Err(ExchangeError::Nonsense { .. })
        ));
    }
}
