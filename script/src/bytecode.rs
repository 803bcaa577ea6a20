//! Reads compiled Lua for one fact: whether it assigns to a global.

/// Lua's instruction that assigns to a global.
const SET_GLOBAL: u32 = 7;
/// The lowest bits of an instruction, which hold its opcode.
const WHICH: u32 = 0x3f;
/// The length of the header before the first function.
const N_HEADER_BYTES: usize = 12;

/// Whether a chunk, or a function in it, may assign to a global.
///
/// The chunk is dumped by Lua 5.1 on this processor. For bytes that are no chunk the answer is true.
pub(crate) fn may_set_globals(dumped: &[u8]) -> bool {
    let mut input = BytecodeReader { rest: dumped, sets_global: false };
    let read = input.skip(N_HEADER_BYTES).and_then(|()| input.function());
    read.is_none() || input.sets_global
}

/// The bytes that are not yet read. Lua's parser limits how deep functions nest.
struct BytecodeReader<'a> {
    rest: &'a [u8],
    sets_global: bool,
}

impl BytecodeReader<'_> {
    fn skip(&mut self, n_bytes: usize) -> Option<()> {
        self.rest = self.rest.get(n_bytes..)?;
        Some(())
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*bytes)
    }

    fn count(&mut self) -> Option<usize> {
        usize::try_from(i32::from_ne_bytes(self.take()?)).ok()
    }

    fn text(&mut self) -> Option<()> {
        let n_bytes = usize::from_ne_bytes(self.take()?);
        self.skip(n_bytes)
    }

    fn function(&mut self) -> Option<()> {
        self.text()?;
        // Its two line numbers, and four counts of one byte each.
        self.skip(2 * 4 + 4)?;
        for _ in 0..self.count()? {
            let instruction = u32::from_ne_bytes(self.take()?);
            self.sets_global |= instruction & WHICH == SET_GLOBAL;
        }
        for _ in 0..self.count()? {
            self.constant()?;
        }
        for _ in 0..self.count()? {
            self.function()?;
        }
        let n_lines = self.count()?;
        self.skip(n_lines.checked_mul(4)?)?;
        for _ in 0..self.count()? {
            self.text()?;
            self.skip(2 * 4)?;
        }
        for _ in 0..self.count()? {
            self.text()?;
        }
        Some(())
    }

    fn constant(&mut self) -> Option<()> {
        match self.take::<1>()? {
            [0] => Some(()),
            [1] => self.skip(1),
            [3] => self.skip(8),
            [4] => self.text(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use mlua::Lua;

    use super::*;

    #[test]
    fn an_assignment_to_a_global_is_found_wherever_it_is() {
        let lua = Lua::new();
        let may = |source: &str| {
            let dumped = lua.load(source).into_function().expect("it is Lua").dump(true);
            may_set_globals(&dumped)
        };
        for source in [
            "x = 1",
            "local y = 1 function f() end",
            "return function() return function() x = nil end end",
            "local a = function() a = 1 end",
            "for i = 1, 2 do local s, t = 'x', 1.5 if i then redis = true end end",
            "repeat local r until true r = 1",
        ] {
            assert!(may(source), "{source}");
        }
        for source in [
            "return redis.call('GET', KEYS[1])",
            "local t = {} t.x = 1 t[1] = nil local function f(...) return ..., t, 'text', 1.5, true end return f",
            "local x x = function() x = 2 end",
        ] {
            assert!(!may(source), "{source}");
        }
        let dumped = lua.load("return 1").into_function().expect("it is Lua").dump(true);
        assert!(may_set_globals(&dumped[..dumped.len() - 1]));
        assert!(may_set_globals(b""));
    }
}
