//! The part of HTTP/1.1 that a scraper and a browser need.
//!
//! Requests have no bodies and come one after the other.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use httparse::{EMPTY_HEADER, Error, Header, Status};

/// The longest head of a request.
pub const HEAD_MAX_BYTES: usize = 8 * 1024;
/// The most headers that a request may have.
const HEADERS_MAX: usize = 64;

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// The requested path, without the part after a question mark.
    pub path: String,
    /// Whether only the head of the answer is wanted.
    pub wants_head_only: bool,
    /// The host by which the client addresses the server, without the port, if given.
    pub host: Option<String>,
    /// The name and password of the client.
    pub credentials: Option<Credentials>,
    /// Whether the connection stays open.
    pub keeps_alive: bool,
}

/// A user's name and password (RFC 7617).
#[derive(PartialEq, Eq)]
pub struct Credentials {
    /// The name.
    pub user: Vec<u8>,
    /// The password.
    pub password: Vec<u8>,
}

/// Hides the password, which is a secret.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Credentials(…)")
    }
}

/// The result of parsing the beginning of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum ParsedRequest {
    /// A request, with its length in bytes.
    Request(HttpRequest, usize),
    /// An incomplete request.
    Incomplete,
    /// Input whose only answer is this code. Later input is not read.
    Refused(Code),
}

/// The status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The requested content follows.
    Ok,
    /// The request cannot be understood.
    BadRequest,
    /// The client must authenticate.
    Unauthorized,
    /// The client may not see the content.
    Forbidden,
    /// There is no such path.
    NotFound,
    /// Nothing here can be changed.
    MethodNotAllowed,
    /// No request here has a body.
    ContentTooLarge,
    /// The server is not known by that name.
    Misdirected,
    /// The head is too long.
    HeadTooLarge,
    /// The server is about to stop.
    Unavailable,
}

impl Code {
    fn line(self) -> &'static str {
        match self {
            Code::Ok => "200 OK",
            Code::BadRequest => "400 Bad Request",
            Code::Unauthorized => "401 Unauthorized",
            Code::Forbidden => "403 Forbidden",
            Code::NotFound => "404 Not Found",
            Code::MethodNotAllowed => "405 Method Not Allowed",
            Code::ContentTooLarge => "413 Content Too Large",
            Code::Misdirected => "421 Misdirected Request",
            Code::HeadTooLarge => "431 Request Header Fields Too Large",
            Code::Unavailable => "503 Service Unavailable",
        }
    }
}

/// Reads the request at the beginning of the input.
pub fn parse(input: &[u8]) -> ParsedRequest {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(&input[..input.len().min(HEAD_MAX_BYTES)]) {
        Ok(Status::Complete(n_bytes)) => match read(&request) {
            Ok(request) => ParsedRequest::Request(request, n_bytes),
            Err(code) => ParsedRequest::Refused(code),
        },
        Ok(Status::Partial) if input.len() < HEAD_MAX_BYTES => ParsedRequest::Incomplete,
        Ok(Status::Partial) | Err(Error::TooManyHeaders) => ParsedRequest::Refused(Code::HeadTooLarge),
        Err(_) => ParsedRequest::Refused(Code::BadRequest),
    }
}

fn read(request: &httparse::Request<'_, '_>) -> Result<HttpRequest, Code> {
    let headers = &*request.headers;
    let target = request.path.ok_or(Code::BadRequest)?;
    // This precedes the method: bytes after the head of such a request must not be read as another request.
    let has_body = of(headers, "content-length").any(|length| length.iter().any(|&digit| digit != b'0'))
        || of(headers, "transfer-encoding").next().is_some();
    if has_body {
        return Err(Code::ContentTooLarge);
    }
    let wants_head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(Code::MethodNotAllowed),
    };
    let mut connection = of(headers, "connection").flat_map(|words| words.split(|&byte| byte == b','));
    let keeps_alive = match request.version {
        Some(1) => !connection.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close")),
        _ => connection.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"keep-alive")),
    };
    let mut authorizations = of(headers, "authorization");
    let credentials = authorizations.next().map(credentials).transpose()?;
    if authorizations.next().is_some() {
        return Err(Code::BadRequest);
    }
    let mut hosts = of(headers, "host");
    let host = hosts.next().map(host_of).transpose()?;
    if hosts.next().is_some() {
        return Err(Code::BadRequest);
    }
    let path = target.split(['?', '#']).next().unwrap_or_default().to_owned();
    Ok(HttpRequest { path, wants_head_only, host, credentials, keeps_alive })
}

/// The host of a `Host` header, in lower case.
///
/// It has no port, and no brackets of an IPv6 address.
fn host_of(value: &[u8]) -> Result<String, Code> {
    let value = str::from_utf8(value.trim_ascii()).map_err(|_| Code::BadRequest)?.to_ascii_lowercase();
    let host = match value.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or(Code::BadRequest)?.0,
        None => value.split(':').next().unwrap_or_default(),
    };
    Ok(host.trim_end_matches('.').to_owned())
}

/// The values of a header.
fn of<'h>(headers: &'h [Header<'h>], name: &'static str) -> impl Iterator<Item = &'h [u8]> {
    headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

/// Reads `Basic`, and Base64 of a name and a password with a colon between them.
fn credentials(value: &[u8]) -> Result<Credentials, Code> {
    let value = value.trim_ascii();
    let (scheme, encoded) =
        value.split_at(value.iter().position(|&byte| byte == b' ').unwrap_or(value.len()));
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return Err(Code::BadRequest);
    }
    let decoded = STANDARD.decode(encoded.trim_ascii()).map_err(|_| Code::BadRequest)?;
    let colon = decoded.iter().position(|&byte| byte == b':').ok_or(Code::BadRequest)?;
    Ok(Credentials { user: decoded[..colon].to_vec(), password: decoded[colon + 1..].to_vec() })
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub code: Code,
    /// The type of its body.
    pub content_type: &'static str,
    /// Additional headers, each with its line end.
    pub headers: &'static str,
    /// Its body.
    pub body: String,
}

impl Answer {
    /// Creates an answer of one line of text.
    pub fn text(code: Code, line: &str) -> Self {
        Self { code, content_type: "text/plain; charset=utf-8", headers: "", body: format!("{line}\n") }
    }

    /// Writes the answer.
    pub fn write(&self, wants_head_only: bool, keeps_alive: bool, out: &mut Vec<u8>) {
        let Self { code, content_type, headers, body } = self;
        let connection = if keeps_alive { "keep-alive" } else { "close" };
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: {connection}\r\n{headers}\r\n",
            code.line(),
            body.len(),
        );
        out.extend_from_slice(head.as_bytes());
        if !wants_head_only {
            out.extend_from_slice(body.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{random, random_below};

    const WHOLE: &[u8] =
        b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nauthorization: basic YTpiOmM=\r\nContent-Length: 0\r\n\r\n";

    fn request(input: &[u8]) -> HttpRequest {
        match parse(input) {
            ParsedRequest::Request(request, n_bytes) => {
                assert_eq!(n_bytes, input.len());
                request
            }
            other => panic!("{other:?}: {}", String::from_utf8_lossy(input)),
        }
    }

    fn head(lines: &str) -> Vec<u8> {
        format!("{}\r\n\r\n", lines.replace('\n', "\r\n")).into_bytes()
    }

    #[test]
    fn a_request_is_read_and_every_part_of_one_is_incomplete() {
        let whole = request(WHOLE);
        assert_eq!(
            (whole.path.as_str(), whole.wants_head_only, whole.keeps_alive),
            ("/metrics", false, true)
        );
        let credentials = whole.credentials.unwrap();
        assert_eq!((&credentials.user[..], &credentials.password[..]), (&b"a"[..], &b"b:c"[..]));
        for end in 0..WHOLE.len() {
            assert_eq!(parse(&WHOLE[..end]), ParsedRequest::Incomplete, "{end}");
        }
        let two = [WHOLE, b"GET / HTTP/1.1\r\n"].concat();
        assert!(matches!(parse(&two), ParsedRequest::Request(_, n_bytes) if n_bytes == WHOLE.len()));
    }

    #[test]
    fn connections_go_on_as_asked() {
        for (lines, keeps_alive) in [
            ("GET / HTTP/1.1", true),
            ("HEAD / HTTP/1.1\nConnection: x, Close", false),
            ("GET / HTTP/1.0", false),
            ("GET / HTTP/1.0\nConnection: Keep-Alive", true),
        ] {
            assert_eq!(request(&head(lines)).keeps_alive, keeps_alive, "{lines}");
        }
        assert!(request(&head("HEAD / HTTP/1.1")).wants_head_only);
    }

    #[test]
    fn hosts_are_read_without_their_ports() {
        for (value, host) in [
            ("localhost:9121", "localhost"),
            ("LocalHost.", "localhost"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]:80", "::1"),
            ("[::1]", "::1"),
            ("", ""),
        ] {
            let request = request(&head(&format!("GET / HTTP/1.1\nHost: {value}")));
            assert_eq!(request.host.as_deref(), Some(host), "{value}");
        }
        assert_eq!(request(&head("GET / HTTP/1.0")).host, None);
    }

    #[test]
    fn what_is_not_answered_is_refused() {
        for (lines, code) in [
            ("POST / HTTP/1.1", Code::MethodNotAllowed),
            ("GET / HTTP/1.1\nContent-Length: 5", Code::ContentTooLarge),
            ("GET / HTTP/1.1\nContent-Length: +0", Code::ContentTooLarge),
            ("POST / HTTP/1.1\nTransfer-Encoding: chunked", Code::ContentTooLarge),
            ("GET / HTTP/2.0", Code::BadRequest),
            ("GET /", Code::BadRequest),
            ("GET / HTTP/1.1\nHost: a\nHost: a", Code::BadRequest),
            ("GET / HTTP/1.1\nHost: [::1", Code::BadRequest),
            ("GET / HTTP/1.1\nAuthorization: Bearer x", Code::BadRequest),
            ("GET / HTTP/1.1\nAuthorization: Basic", Code::BadRequest),
            ("GET / HTTP/1.1\nAuthorization: Basic !", Code::BadRequest),
            ("GET / HTTP/1.1\nAuthorization: Basic YQ==", Code::BadRequest),
            ("GET / HTTP/1.1\nAuthorization: Basic YTpi\nAuthorization: Basic YTpi", Code::BadRequest),
        ] {
            assert_eq!(parse(&head(lines)), ParsedRequest::Refused(code), "{lines}");
        }
        let many = format!("GET / HTTP/1.1{}", "\na: b".repeat(HEADERS_MAX + 1));
        assert_eq!(parse(&head(&many)), ParsedRequest::Refused(Code::HeadTooLarge));
        let long = [b"GET / HTTP/1.1\r\na: ", &vec![b'x'; HEAD_MAX_BYTES][..]].concat();
        assert_eq!(parse(&long), ParsedRequest::Refused(Code::HeadTooLarge));
    }

    /// Returns bytes that resemble a request, and may be anything.
    fn garbage() -> Vec<u8> {
        const PIECES: &[&[u8]] = &[
            WHOLE,
            b"GET ",
            b"/",
            b" HTTP/1.1",
            b"\r\n",
            b"\n",
            b": ",
            b"Authorization: Basic ",
            b"\0",
            b"\xff",
        ];
        let mut bytes = Vec::new();
        for _ in 0..random_below(12) {
            match random_below(PIECES.len() + 3) {
                nth if nth < PIECES.len() => bytes.extend_from_slice(PIECES[nth]),
                _ => bytes.extend((0..random_below(40)).map(|_| random() as u8)),
            }
        }
        for _ in 0..random_below(3).min(bytes.len()) {
            let at = random_below(bytes.len());
            bytes[at] = random() as u8;
        }
        bytes
    }

    #[test]
    fn no_bytes_do_harm() {
        for _ in 0..100_000 {
            let bytes = garbage();
            match parse(&bytes) {
                ParsedRequest::Request(request, n_bytes) => {
                    assert!((1..=bytes.len()).contains(&n_bytes) && !request.path.contains('?'));
                }
                ParsedRequest::Incomplete => assert!(bytes.len() < HEAD_MAX_BYTES),
                ParsedRequest::Refused(code) => assert_ne!(code, Code::Ok),
            }
        }
    }
}
