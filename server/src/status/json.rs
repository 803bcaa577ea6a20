//! Writes JSON (RFC 8259).

use std::fmt::Write as _;

/// A value that is being written. What is opened is closed by whoever opened it.
#[derive(Debug, Default)]
pub struct Json {
    written: String,
    /// Something stands before the next value, in what is open.
    is_second: bool,
}

impl Json {
    /// What was written.
    pub fn finish(self) -> String {
        self.written
    }

    /// Writes an object.
    pub fn object(&mut self, fill: impl FnOnce(&mut Self)) {
        self.enclose('{', fill, '}');
    }

    /// Writes an array.
    pub fn array(&mut self, fill: impl FnOnce(&mut Self)) {
        self.enclose('[', fill, ']');
    }

    fn enclose(&mut self, open: char, fill: impl FnOnce(&mut Self), close: char) {
        self.begin_value();
        self.written.push(open);
        self.is_second = false;
        fill(self);
        self.written.push(close);
        self.is_second = true;
    }

    /// Writes the name of what is written next, in an object.
    pub fn name(&mut self, name: &str) -> &mut Self {
        self.string(name);
        self.written.push(':');
        self.is_second = false;
        self
    }

    /// Writes text.
    pub fn string(&mut self, text: &str) {
        self.begin_value();
        self.written.push('"');
        for letter in text.chars() {
            match letter {
                '"' | '\\' => self.written.extend(['\\', letter]),
                '\0'..='\x1f' => {
                    write!(self.written, "\\u{:04x}", u32::from(letter))
                        .expect("a string takes whatever is written");
                }
                _ => self.written.push(letter),
            }
        }
        self.written.push('"');
    }

    /// Writes bytes as text, as far as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.string(&String::from_utf8_lossy(bytes));
    }

    /// Writes a number.
    pub fn integer(&mut self, value: u64) {
        self.begin_value();
        write!(self.written, "{value}").expect("a string takes whatever is written");
    }

    /// Writes a number with a fraction; null if it is none.
    pub fn number(&mut self, value: f64) {
        self.begin_value();
        match value.is_finite() {
            true => write!(self.written, "{value}").expect("a string takes whatever is written"),
            false => self.written.push_str("null"),
        }
    }

    /// Writes true or false.
    pub fn boolean(&mut self, value: bool) {
        self.begin_value();
        self.written.push_str(if value { "true" } else { "false" });
    }

    /// Writes null.
    pub fn null(&mut self) {
        self.begin_value();
        self.written.push_str("null");
    }

    fn begin_value(&mut self) {
        if std::mem::replace(&mut self.is_second, true) {
            self.written.push(',');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_kind_are_written() {
        let mut json = Json::default();
        json.object(|json| {
            json.name("a").integer(1);
            json.name("b").array(|json| {
                json.number(0.5);
                json.number(f64::NAN);
                json.object(|_| {});
                json.array(|_| {});
                json.boolean(true);
            });
            json.name("\"\\").bytes(b"x\n\xff<");
            json.name("none").null();
        });
        assert_eq!(
            json.finish(),
            "{\"a\":1,\"b\":[0.5,null,{},[],true],\"\\\"\\\\\":\"x\\u000a\u{fffd}<\",\"none\":null}"
        );
    }
}
