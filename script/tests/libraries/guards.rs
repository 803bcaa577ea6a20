//! Tests against inputs that could bring a server down.
//!
//! They are faults of other servers, by their CVE numbers, and work without end.

use braid_script::library::Checkpoint;

use super::cases::script;
use super::ours;

/// Asserts the values of an expression, as `show` writes them.
#[track_caller]
fn assert_gives(expression: &str, expected: &str) {
    let answer = ours::run(&script(&[expression.to_owned()]));
    assert_eq!(String::from_utf8_lossy(&answer), expected, "{expression}");
}

/// Asserts that an expression asks whether to continue, and ends when it must.
#[track_caller]
fn assert_ends_when_killed(expression: &str) {
    let lua = ours::state();
    lua.set_app_data(Checkpoint(|_, _| Err(mlua::Error::runtime("killed"))));
    let outcome = lua.load(format!("return {expression}")).exec();
    let text = outcome.expect_err(expression).to_string();
    assert!(text.contains("killed"), "{expression}: {text}");
}

#[test]
fn cve_2018_11218_deep_messages_are_refused() {
    let deep_arrays = "cmsgpack.unpack(('\\145'):rep(1e6))";
    assert_gives(
        deep_arrays,
        r#"error "user_script:49: stack overflow (in function mp_decode_to_lua_array)""#,
    );
    let many = r#"error "user_script:49: stack overflow (too many return values at once; use unpack_one or unpack_limit instead.)""#;
    assert_gives("cmsgpack.unpack(('\\129'):rep(1e6))", many);
    assert_gives("cmsgpack.unpack(('\\1'):rep(1e6))", many);
    assert_gives("cmsgpack.unpack(('\\161a'):rep(1e6))", many);
}

#[test]
fn cve_2018_11219_sizes_of_structures_do_not_overflow() {
    let short = r#"error "user_script:49: bad argument #2 to 'unpack' (data string too short)""#;
    assert_gives("struct.unpack('c2147483647', 'abc', 2^62)", short);
    assert_gives("struct.unpack('c10', 'abc', -1)", short);
    assert_gives("struct.unpack('Lc0', '\\255\\255\\255\\255\\255\\255\\255\\127abc')", short);
}

#[test]
fn cve_2020_14147_numbers_in_formats_do_not_overflow() {
    let overflow = r#"error "user_script:49: integral size overflow""#;
    assert_gives("struct.pack('i4294967297', 1)", overflow);
    assert_gives("struct.unpack('c99999999999999999999', 'a')", overflow);
    assert_gives("struct.size('!2147483648i')", overflow);
}

#[test]
fn cve_2022_24834_large_texts_are_escaped_in_full() {
    assert_gives("#cjson.encode(('\\0'):rep(2^24))", "100663298");
    assert_gives("#cmsgpack.pack(('x'):rep(2^24))", "16777221");
}

#[test]
fn cve_2024_31449_tohex_takes_the_smallest_number() {
    assert_gives("bit.tohex(-1, -2147483648)", r#""FFFFFFFF""#);
    assert_gives("bit.tohex(-1, 2147483647)", r#""ffffffff""#);
}

#[test]
fn long_patterns_use_no_stack_of_the_machine() {
    assert_gives("string.find(('a'):rep(4e5), ('a?'):rep(4e5))", "1 400000");
    assert_gives("#string.match(('a'):rep(4e5), ('a-'):rep(4e5) .. '$')", "400000");
    let complex = r#"error "user_script:49: pattern too complex""#;
    assert_gives("string.find(('a'):rep(2e6), ('a?'):rep(2e6))", complex);
    assert_gives("string.find('x', ('('):rep(1e6))", r#"error "user_script:49: too many captures""#);
}

#[test]
fn searches_without_end_can_be_killed() {
    assert_ends_when_killed("string.find(('a'):rep(100), ('a*'):rep(50) .. 'b')");
    assert_ends_when_killed("string.find(('a'):rep(100), ('a?'):rep(50) .. ('a'):rep(99) .. 'b')");
    assert_ends_when_killed("string.match(('a'):rep(1e6), '.-b')");
    assert_ends_when_killed("string.gsub(('('):rep(1e5), '%b()', '')");
    assert_ends_when_killed("string.gsub(('a'):rep(1e6), 'a', 'b')");
    assert_ends_when_killed("string.gsub(('a'):rep(1e5), '', ('x'):rep(1e5))");
    assert_ends_when_killed("string.gsub(('a'):rep(1e5) , '.-b', type)");
    assert_ends_when_killed("string.gmatch(('a'):rep(1e5) , '.-b')()");
    assert_ends_when_killed("string.find(('a'):rep(1e6), 'b', 1, true)");
    assert_ends_when_killed("string.find('aaa', '[' .. ('b'):rep(1e5) .. ']')");
    assert_ends_when_killed("string.find(('a'):rep(1e6), '(.*)%1b')");
}

#[test]
fn large_values_can_be_killed() {
    assert_ends_when_killed("cjson.decode('[' .. ('1,'):rep(1e6) .. '1]')");
    assert_ends_when_killed("cjson.decode('\"' .. ('a'):rep(1e6) .. '\"')");
    assert_ends_when_killed("cjson.encode(('a'):rep(1e6))");
    assert_ends_when_killed(
        "(function() local t = {} for i = 1, 1e5 do t[i] = i end return cjson.encode(t) end)()",
    );
    assert_ends_when_killed(
        "(function() local t = {} for i = 1, 1e5 do t[-i] = i end return cmsgpack.pack(t) end)()",
    );
    assert_ends_when_killed(
        "(function() local t = {} for i = 1, 40 do t = {t, t} end return cjson.encode(t) end)()",
    );
    assert_ends_when_killed("cmsgpack.unpack('\\221\\255\\255\\255\\255' .. ('a'):rep(1e5))");
    assert_ends_when_killed("struct.size(('x'):rep(1e5))");
    assert_ends_when_killed("struct.pack(('x'):rep(1e5))");
    assert_ends_when_killed("struct.unpack(('x'):rep(1e5), ('x'):rep(1e5))");
}

#[test]
fn many_values_are_refused_rather_than_held() {
    let strings = |n: u32| {
        format!("(function() local t = {{}} for i = 1, {n} do t[i] = 's' .. i end return unpack(t) end)()")
    };
    let refused =
        r#"error "user_script:49: bad argument #0 to 'pack' (Too many arguments for MessagePack pack.)""#;
    assert_gives(&format!("cmsgpack.pack({})", strings(7000)), refused);
    assert_gives(&format!("#cmsgpack.pack({})", strings(3900)), "22293");
    let too_many = r#"error "user_script:49: stack overflow (too many results)""#;
    assert_gives("struct.unpack(('c1'):rep(9000), ('x'):rep(9000))", too_many);
}

#[test]
fn loops_hold_nothing_outside_lua() {
    assert_gives(
        "(function() local t = {} for i = 1, 2e4 do t[i] = ('a b'):gmatch('%a') t[i]() end return t[2e4]() end)()",
        r#""b""#,
    );
}

#[test]
fn depth_is_bounded_where_scripts_raise_the_limit() {
    assert_gives(
        "(function() local c = cjson.new() c.decode_max_depth(1e9) return c.decode(('['):rep(1e6)) end)()",
        r#"error "user_script:49: Found too many nested data structures (1501) at character 1501""#,
    );
    assert_gives(
        "(function() local c = cjson.new() c.encode_max_depth(1e9) local t = {} t.a = t return c.encode(t) end)()",
        r#"error "user_script:49: Cannot serialise, excessive nesting (1501)""#,
    );
    assert_gives(
        "(function() local c = cjson.new() c.encode_max_depth(1500) c.decode_max_depth(1500) \
         local text = ('{\"a\":'):rep(1500) .. '1' .. ('}'):rep(1500) return c.encode(c.decode(text)) == text end)()",
        "true",
    );
}

#[test]
fn a_state_that_is_full_gets_an_error() {
    for expression in [
        "cjson.decode('[' .. ('1,'):rep(5e5) .. '1]')",
        "cmsgpack.unpack('\\221\\0\\7\\0\\0' .. ('a'):rep(5e5))",
        "string.gsub(('a'):rep(5e5), 'a', 'bbbbbbbbbb')",
        "string.gsub(('a'):rep(5e5), 'a', function() return 'bbbbbbbbbb' end)",
        "cjson.encode(('\\0'):rep(1e6))",
    ] {
        let lua = ours::state();
        lua.set_memory_limit(3 << 20).expect("a limit");
        let text = lua.load(format!("return {expression}")).exec().expect_err(expression).to_string();
        assert!(text.contains("not enough memory"), "{expression}: {text}");
    }
}

/// Tables of more values than are made at once, open ones among them.
///
/// Their texts differ from those in the data.
#[test]
fn large_data_is_made_in_pieces_and_whole() {
    const ROW: &str = r#"{ n = i, t = "\"" .. i, list = { i, { i } } }"#;
    const CHECK: &str = "for i = 1, 3000 do local row = all[i] if row.n ~= i or row.t ~= '\"' .. i \
                         or row.list[1] ~= i or row.list[2][1] ~= i or #row.list ~= 2 then return 'wrong at ' .. i end end \
                         return #all";
    for (pack, unpack) in [("cjson.encode", "cjson.decode"), ("cmsgpack.pack", "cmsgpack.unpack")] {
        assert_gives(
            &format!(
                "(function() local all = {{}} for i = 1, 3000 do all[i] = {ROW} end all = {unpack}({pack}(all)) {CHECK} end)()"
            ),
            "3000",
        );
    }
    assert_gives("select('#', cmsgpack.unpack(('\\145\\1'):rep(3000)))", "3000");
    assert_gives("select(3000, cmsgpack.unpack(('\\145\\7'):rep(3000)))[1]", "7");
}
