//! RESP2, RESP3 and inline commands: bytes to requests and replies, and back.
