//! Fixed cases with the answers of redis-server 7.0.15.

use super::cases::script;
use super::ours;

/// Expressions, and their values as `show` writes them.
const CASES: &[(&str, &str)] = &[
    (r#"string.find('hello world', 'o w')"#, r#"5 7"#),
    (r#"string.find('hello world', 'l+', 5)"#, r#"10 10"#),
    (r#"string.find('a.b', '.', 1, true)"#, r#"2 2"#),
    (r#"string.find('hello', '')"#, r#"1 0"#),
    (r#"string.find('hello', '', 10)"#, r#"6 5"#),
    (r#"string.match('key = value', '(%w+)%s*=%s*(%w+)')"#, r#""key" "value""#),
    (r#"string.match('  trim  ', '^%s*(.-)%s*$')"#, r#""trim""#),
    (r#"string.match('THE (quick) fox', '%((%a+)%)')"#, r#""quick""#),
    (r#"string.find('THE (quick) fox', '%f[%a]%a+%f[%A]')"#, r#"1 3"#),
    (r#"string.gsub('hello world', 'o', '0', 1)"#, r#""hell0 world" 1"#),
    (r#"string.gsub('abc', '%w', '%0%0')"#, r#""aabbcc" 3"#),
    (r#"string.gsub('abc', '%w*', 'x')"#, r#""xx" 2"#),
    (r#"string.gsub('$name is $age', '%$(%w+)', {name = 'Lua', age = 5})"#, r#""Lua is 5" 2"#),
    (r#"string.gsub('abc', '(a)(b)', function(a, b) return b .. a end)"#, r#""bac" 1"#),
    (r#"string.gsub('f(a(b)c)d', '%b()', '')"#, r#""fd" 1"#),
    (
        r#"string.find()"#,
        r#"error "user_script:49: bad argument #1 to 'find' (string expected, got no value)""#,
    ),
    (
        r#"string.find('a', nil)"#,
        r#"error "user_script:49: bad argument #2 to 'find' (string expected, got nil)""#,
    ),
    (
        r#"('x'):rep(3):find()"#,
        r#"error "user_script:49: bad argument #1 to 'find' (string expected, got no value)""#,
    ),
    (r#"string.find('a', '%')"#, r#"error "user_script:49: malformed pattern (ends with '%')""#),
    (r#"string.find('a', '[a')"#, r#"error "user_script:49: malformed pattern (missing ']')""#),
    (r#"string.find('a', '(a')"#, r#"error "user_script:49: unfinished capture""#),
    (r#"string.find('a', 'a)')"#, r#"nil"#),
    (r#"string.find('a', '%1')"#, r#"error "user_script:49: invalid capture index""#),
    (r#"string.find('a', '%f')"#, r#"error "user_script:49: missing '[' after '%f' in pattern""#),
    (r#"string.find('a', '%b')"#, r#"error "user_script:49: unbalanced pattern""#),
    (r#"string.find('a', ('(a'):rep(33))"#, r#"nil"#),
    (r#"string.gsub('a', 'a', '%2')"#, r#"error "user_script:49: invalid capture index""#),
    (
        r#"string.gsub('a', 'a', true)"#,
        r#"error "user_script:49: bad argument #3 to 'gsub' (string/function/table expected)""#,
    ),
    (r#"string.gsub('a', 'a', {a = {}})"#, r#"error "user_script:49: invalid replacement value (a table)""#),
    (
        r#"string.find({}, 'a')"#,
        r#"error "user_script:49: bad argument #1 to 'find' (string expected, got table)""#,
    ),
    (
        r#"string.find('a', 'a', {})"#,
        r#"error "user_script:49: bad argument #3 to 'find' (number expected, got table)""#,
    ),
    (r#"pcall(string.find)"#, r#"false "bad argument #1 to '?' (string expected, got no value)""#),
    (r#"pcall(cjson.decode, 'x')"#, r#"false "Expected value but found invalid token at character 1""#),
    (r#"cjson.encode({1, 2, {a = 'b'}})"#, r#""[1,2,{\034a\034:\034b\034}]""#),
    (r#"cjson.encode({})"#, r#""{}""#),
    (r#"cjson.encode({{}, ''})"#, r#""[{},\034\034]""#),
    (
        r#"cjson.encode({0.1, 1/3, 1e15, 1e14, 1e100, -0, 123456789012345})"#,
        r#""[0.1,0.33333333333333,1e+15,1e+14,1e+100,-0,1.2345678901234e+14]""#,
    ),
    (r#"cjson.encode('\127/"\\\233\0\n')"#, r#""\034\092u007f\092/\092\034\092\092\233\092u0000\092n\034""#),
    (r#"cjson.encode({[1] = 1, [3] = 3})"#, r#""[1,null,3]""#),
    (
        r#"cjson.encode({[1] = 1, [100] = 3})"#,
        r#"error "user_script:49: Cannot serialise table: excessively sparse array""#,
    ),
    (r#"cjson.encode({[1.5] = true, [-1] = cjson.null})"#, r#""{\0341.5\034:true,\034-1\034:null}""#),
    (r#"cjson.encode({[2^40] = 1})"#, r#""{\0341099511627776\034:1}""#),
    (r#"cjson.encode(1/0)"#, r#"error "user_script:49: Cannot serialise number: must not be NaN or Inf""#),
    (r#"cjson.encode(type)"#, r#"error "user_script:49: Cannot serialise function: type not supported""#),
    (
        r#"cjson.encode({[true] = 1})"#,
        r#"error "user_script:49: Cannot serialise boolean: table key must be a number or string""#,
    ),
    (r#"cjson.encode()"#, r#"error "user_script:49: bad argument #1 to 'encode' (expected 1 argument)""#),
    (
        r#"cjson.encode((function() local t = {} t[1] = t return t end)())"#,
        r#"error "user_script:49: Cannot serialise, excessive nesting (1001)""#,
    ),
    (
        r#"cjson.decode('{"a":[1,2,{"b":null}],"c":"\\u00e9\\ud83d\\ude00"}')"#,
        r#"#0{["a"]=#3{[1]=1,[2]=2,[3]=#0{["b"]=null}},["c"]="\195\169\240\159\152\128"}"#,
    ),
    (
        r#"cjson.decode('[0x10, 1e400, -inf, 1E2, 00012, 5e-324]')"#,
        r#"#6{[1]=16,[2]=inf,[3]=-inf,[4]=100,[5]=12,[6]=4.9406564584124654e-324}"#,
    ),
    (r#"cjson.decode('')"#, r#"error "user_script:49: Expected value but found T_END at character 1""#),
    (
        r#"cjson.decode('x')"#,
        r#"error "user_script:49: Expected value but found invalid token at character 1""#,
    ),
    (
        r#"cjson.decode('[1,]')"#,
        r#"error "user_script:49: Expected value but found T_ARR_END at character 4""#,
    ),
    (
        r#"cjson.decode('{1:2}')"#,
        r#"error "user_script:49: Expected object key string but found T_NUMBER at character 2""#,
    ),
    (
        r#"cjson.decode('{"a" 1}')"#,
        r#"error "user_script:49: Expected colon but found T_NUMBER at character 6""#,
    ),
    (
        r#"cjson.decode('{"a":1')"#,
        r#"error "user_script:49: Expected comma or object end but found T_END at character 7""#,
    ),
    (
        r#"cjson.decode('[1 2]')"#,
        r#"error "user_script:49: Expected comma or array end but found T_NUMBER at character 4""#,
    ),
    (
        r#"cjson.decode('"abc')"#,
        r#"error "user_script:49: Expected value but found unexpected end of string at character 5""#,
    ),
    (
        r#"cjson.decode('"\\x"')"#,
        r#"error "user_script:49: Expected value but found invalid escape code at character 2""#,
    ),
    (
        r#"cjson.decode('"\\ud800"')"#,
        r#"error "user_script:49: Expected value but found invalid unicode escape code at character 2""#,
    ),
    (
        r#"cjson.decode('1 2')"#,
        r#"error "user_script:49: Expected the end but found T_NUMBER at character 3""#,
    ),
    (r#"cjson.decode('\0\0')"#, r#"error "user_script:49: JSON parser does not support UTF-16 or UTF-32""#),
    (
        r#"cjson.decode(('['):rep(1001))"#,
        r#"error "user_script:49: Found too many nested data structures (1001) at character 1001""#,
    ),
    (
        r#"cjson.new().encode_max_depth(0)"#,
        r#"error "user_script:49: bad argument #1 to 'encode_max_depth' (expected integer between 1 and 2147483647)""#,
    ),
    (r#"cjson.new().encode_sparse_array(true, 3, 4)"#, r#"true 3 4"#),
    (r#"cjson.new().encode_invalid_numbers('null')"#, r#""null""#),
    (
        r#"cjson.new().encode_keep_buffer('maybe')"#,
        r#"error "user_script:49: bad argument #1 to 'encode_keep_buffer' (invalid option 'maybe')""#,
    ),
    (
        r#"cjson.new().decode_max_depth(1, 2)"#,
        r#"error "user_script:49: bad argument #2 to 'decode_max_depth' (found too many arguments)""#,
    ),
    (r#"cjson._NAME, cjson._VERSION, cjson.null"#, r#""cjson" "2.1.0" null"#),
    (
        r#"cmsgpack.pack(1, -1, 127, 128, 255, 256, 65535, 65536, 2^32, 2^53, -32, -33, -128, -129, -32768, -32769, -2^31, -2^31 - 1)"#,
        r#""\001\255\127\204\128\204\255\205\001\000\205\255\255\206\000\001\000\000\207\000\000\000\001\000\000\000\000\207\000 \000\000\000\000\000\000\224\208\223\208\128\209\255\127\209\128\000\210\255\255\127\255\210\128\000\000\000\211\255\255\255\255\127\255\255\255""#,
    ),
    (
        r#"cmsgpack.pack(0.5, 0.1, 1/0, 2^63, -2^63)"#,
        r#""\202?\000\000\000\203?\185\153\153\153\153\153\154\202\127\128\000\000\202_\000\000\000\211\128\000\000\000\000\000\000\000""#,
    ),
    (
        r#"cmsgpack.pack('', ('x'):rep(31), ('x'):rep(32), true, false, nil)"#,
        r#""\160\191xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\217 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\195\194\192""#,
    ),
    (
        r#"cmsgpack.pack({1, 2, 3}, {a = 1}, {}, {[1] = 1, [3] = 3})"#,
        r#""\147\001\002\003\129\161a\001\144\130\001\001\003\003""#,
    ),
    (
        r#"cmsgpack.pack({{{{{{{{{{{{{{{{{{1}}}}}}}}}}}}}}}}}})"#,
        r#""\145\145\145\145\145\145\145\145\145\145\145\145\145\145\145\145\192""#,
    ),
    (
        r#"cmsgpack.unpack(cmsgpack.pack({1, 'a', {b = true}}, 2, nil, 3))"#,
        r#"#3{[1]=1,[2]="a",[3]=#0{["b"]=true}} 2 nil 3"#,
    ),
    (r#"cmsgpack.unpack_one('\1\2\3')"#, r#"1 1"#),
    (r#"cmsgpack.unpack_one('\1\2\3', 2)"#, r#"-1 3"#),
    (r#"cmsgpack.unpack_limit('\1\2\3', 2)"#, r#"2 1 2"#),
    (
        r#"cmsgpack.unpack_limit('\1\2\3', 2, 4)"#,
        r#"error "user_script:49: Start offset 4 greater than input length 3.""#,
    ),
    (
        r#"cmsgpack.unpack_limit('\1\2\3', -1)"#,
        r#"error "user_script:49: Invalid request to unpack with offset of 0 and limit of 3.""#,
    ),
    (r#"cmsgpack.unpack('\193')"#, r#"error "user_script:49: Bad data format in input.""#),
    (r#"cmsgpack.unpack('\204')"#, r#"error "user_script:49: Missing bytes in input.""#),
    (r#"cmsgpack.unpack('\221\255\255\255\255')"#, r#"error "user_script:49: Missing bytes in input.""#),
    (r#"cmsgpack.unpack('\129\192\1')"#, r#"error "table index is nil""#),
    (
        r#"cmsgpack.pack()"#,
        r#"error "user_script:49: bad argument #0 to 'pack' (MessagePack pack needs input.)""#,
    ),
    (
        r#"cmsgpack._NAME, cmsgpack._VERSION, cmsgpack._COPYRIGHT, cmsgpack._DESCRIPTION"#,
        r#""cmsgpack" "lua-cmsgpack 0.4.0" "Copyright (C) 2012, Salvatore Sanfilippo" "MessagePack C implementation for Lua""#,
    ),
    (
        r#"struct.pack('>I2<I2bBhHlLs', 1, 2, -1, 255, -2, 65535, -3, 4, 'text')"#,
        r#""\000\001\002\000\255\255\254\255\255\255\253\255\255\255\255\255\255\255\004\000\000\000\000\000\000\000text\000""#,
    ),
    (
        r#"struct.pack('!8bd!2bi', 1, 2.5, 3, 4)"#,
        r#""\001\000\000\000\000\000\000\000\000\000\000\000\000\000\004@\003\000\004\000\000\000""#,
    ),
    (r#"struct.pack('c0c2f', 'abc', 'xyz', 1.5)"#, r#""abcxy\000\000\192?""#),
    (r#"struct.unpack('>I2bs', '\1\2\255text\0')"#, r#"258 -1 "text" 9"#),
    (r#"struct.unpack('bc0', '\3abcdef')"#, r#""abc" 5"#),
    (r#"struct.unpack('>d', struct.pack('>d', 0.1))"#, r#"0.10000000000000001 9"#),
    (r#"struct.size('!8bdi')"#, r#"20"#),
    (r#"struct.pack('i33', 1)"#, r#"error "user_script:49: integral size 33 is larger than limit of 32""#),
    (r#"struct.pack('!3i', 1)"#, r#"error "user_script:49: alignment 3 is not a power of 2""#),
    (
        r#"struct.pack('z', 1)"#,
        r#"error "user_script:49: bad argument #1 to 'pack' (invalid format option 'z')""#,
    ),
    (
        r#"struct.pack('i')"#,
        r#"error "user_script:49: bad argument #2 to 'pack' (number expected, got nil)""#,
    ),
    (
        r#"struct.pack('c5', 'abc')"#,
        r#"error "user_script:49: bad argument #3 to 'pack' (string too short)""#,
    ),
    (
        r#"struct.unpack('i', 'abc')"#,
        r#"error "user_script:49: bad argument #2 to 'unpack' (data string too short)""#,
    ),
    (
        r#"struct.unpack('b', 'abc', 0)"#,
        r#"error "user_script:49: bad argument #3 to 'unpack' (offset must be 1 or greater)""#,
    ),
    (r#"struct.unpack('c0', 'abc')"#, r#"error "user_script:49: format 'c0' needs a previous size""#),
    (r#"struct.unpack('s', 'abc')"#, r#"error "user_script:49: unfinished string in data""#),
    (
        r#"struct.size('s')"#,
        r#"error "user_script:49: bad argument #1 to 'size' (option 's' has no fixed size)""#,
    ),
    (r#"bit.tobit(2^40 + 5.5), bit.tobit(-1), bit.tobit(0xffffffff)"#, r#"6 -1 -1"#),
    (
        r#"bit.tohex(255), bit.tohex(255, 4), bit.tohex(255, -4), bit.tohex(-1, 0)"#,
        r#""000000ff" "00ff" "00FF" """#,
    ),
    (r#"bit.bnot(0), bit.band(12, 10, 9), bit.bor(1, 2, 4), bit.bxor(5, 1)"#, r#"-1 8 7 4"#),
    (
        r#"bit.lshift(1, 33), bit.rshift(-1, 28), bit.arshift(-256, 4), bit.rol(0x12345678, 12), bit.ror(0x12345678, 12), bit.bswap(0x12345678)"#,
        r#"2 15 -16 1164411171 1736516421 2018915346"#,
    ),
    (
        r#"bit.band(), bit"#,
        r#"error "user_script:49: bad argument #1 to 'band' (number expected, got no value)""#,
    ),
    (
        r#"bit.band(1, {}, 'x')"#,
        r#"error "user_script:49: bad argument #3 to 'band' (number expected, got string)""#,
    ),
    (
        r#"bit.tohex(1, nil)"#,
        r#"error "user_script:49: bad argument #2 to 'tohex' (number expected, got nil)""#,
    ),
];

#[test]
fn answers_are_those_that_redis_gave() {
    for (expression, expected) in CASES {
        let answer = ours::run(&script(&[(*expression).to_owned()]));
        assert_eq!(String::from_utf8_lossy(&answer), *expected, "{expression}");
    }
}
