//! The payload of a copy: a snapshot of known length, or one that ends with a mark.

/// The digits of a mark.
const MARK_BYTES: usize = 40;

/// The form of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// Its length in bytes comes first.
    Length(u64),
    /// It ends where these bytes come.
    Marked([u8; MARK_BYTES]),
}

impl Form {
    /// Reads the form from the line before the payload.
    pub fn of(line: &[u8]) -> Option<Form> {
        let rest = line.strip_prefix(b"$")?;
        if let Some(mark) = rest.strip_prefix(b"EOF:") {
            return mark.try_into().ok().map(Form::Marked);
        }
        let is_number = !rest.is_empty() && rest.iter().all(u8::is_ascii_digit);
        let length = std::str::from_utf8(rest).ok().filter(|_| is_number)?.parse().ok()?;
        Some(Form::Length(length))
    }

    /// The length in bytes, if it is known.
    pub fn length(&self) -> Option<u64> {
        match self {
            Form::Length(length) => Some(*length),
            Form::Marked(_) => None,
        }
    }
}

/// Finds the end of a payload among the bytes of a connection.
pub struct PayloadEnd {
    form: Form,
    /// The bytes of the payload so far.
    n_seen: u64,
    /// Bytes that may begin the mark. They are given out once it is known that they do not.
    kept: Vec<u8>,
    is_over: bool,
}

impl PayloadEnd {
    /// Begins with the first byte of a payload.
    pub fn new(form: Form) -> Self {
        let is_over = form == Form::Length(0);
        Self { form, n_seen: 0, kept: Vec::new(), is_over }
    }

    /// Whether the payload is complete.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes the next bytes of the connection. Adds those of the payload to `payload`.
    ///
    /// Returns how many bytes were used. The rest comes after the payload.
    pub fn take(&mut self, bytes: &[u8], payload: &mut Vec<u8>) -> usize {
        if self.is_over {
            return 0;
        }
        match self.form {
            Form::Length(length) => {
                let n_left = usize::try_from(length - self.n_seen).unwrap_or(usize::MAX);
                let n = bytes.len().min(n_left);
                payload.extend_from_slice(&bytes[..n]);
                self.n_seen += n as u64;
                self.is_over = self.n_seen == length;
                n
            }
            Form::Marked(mark) => self.take_marked(&mark, bytes, payload),
        }
    }

    fn take_marked(&mut self, mark: &[u8; MARK_BYTES], bytes: &[u8], payload: &mut Vec<u8>) -> usize {
        let n_kept = self.kept.len();
        self.kept.extend_from_slice(bytes);
        if let Some(at) = position_of(mark, &self.kept) {
            payload.extend_from_slice(&self.kept[..at]);
            self.n_seen += at as u64;
            self.is_over = true;
            self.kept = Vec::new();
            return at + MARK_BYTES - n_kept;
        }
        // All but the last bytes, which may be the beginning of the mark.
        let n_certain = self.kept.len().saturating_sub(MARK_BYTES - 1);
        payload.extend_from_slice(&self.kept[..n_certain]);
        self.n_seen += n_certain as u64;
        self.kept.drain(..n_certain);
        bytes.len()
    }
}

/// The first place of a mark in some bytes.
fn position_of(mark: &[u8; MARK_BYTES], bytes: &[u8]) -> Option<usize> {
    let last = bytes.len().checked_sub(MARK_BYTES)?;
    let mut from = 0;
    while from <= last {
        let at = from + bytes[from..=last].iter().position(|&byte| byte == mark[0])?;
        if bytes[at..at + MARK_BYTES] == *mark {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: [u8; MARK_BYTES] = *b"aab4567890aab456789XYZab4567890abcdefghi";

    #[test]
    fn lines_say_the_form() {
        assert_eq!(Form::of(b"$0"), Some(Form::Length(0)));
        assert_eq!(Form::of(b"$4294967296"), Some(Form::Length(1 << 32)));
        assert_eq!(Form::of(&[b"$EOF:", &MARK[..]].concat()), Some(Form::Marked(MARK)));
        for line in
            [&b"$"[..], b"$-1", b"$+1", b"$1x", b"$EOF:short", b"5", b"$EOF:", b"$99999999999999999999"]
        {
            assert_eq!(Form::of(line), None, "{line:?}");
        }
    }

    fn split(form: &Form, input: &[u8], n: usize) -> (Vec<u8>, Vec<u8>, bool) {
        let (mut end, mut payload, mut after) = (PayloadEnd::new(form.clone()), Vec::new(), Vec::new());
        for piece in input.chunks(n) {
            let n_used = end.take(piece, &mut payload);
            after.extend_from_slice(&piece[n_used..]);
        }
        (payload, after, end.is_over())
    }

    #[test]
    fn the_end_is_found_however_the_bytes_are_cut() {
        // The content resembles the mark, and repeats its beginning before it.
        let content = b"REDIS aab4567890aab456789XYZab4567890abcdefgh aaaaab4567890";
        let marked = [&content[..], &MARK, b"*1 after"].concat();
        let counted = [&content[..], b"*1 after"].concat();
        for n in 1..marked.len() + 1 {
            let expected = (content.to_vec(), b"*1 after".to_vec(), true);
            assert_eq!(split(&Form::Marked(MARK), &marked, n), expected, "{n}");
            assert_eq!(split(&Form::Length(content.len() as u64), &counted, n), expected, "{n}");
        }
    }

    #[test]
    fn a_payload_that_is_cut_off_is_not_over() {
        let (_, after, is_over) = split(&Form::Marked(MARK), &MARK[..39], 7);
        assert_eq!((after.len(), is_over), (0, false));
        assert_eq!(split(&Form::Length(4), b"abc", 2), (b"abc".to_vec(), Vec::new(), false));
        assert_eq!(split(&Form::Length(0), b"abc", 2), (Vec::new(), b"abc".to_vec(), true));
    }
}
