#!/usr/bin/env python3
"""Writes tests/text/golden/jinja_cases.jsonl: small templates and what Python's jinja2 renders them to.

    /opt/venv/bin/python tests/text/jinja_oracle.py > tests/text/golden/jinja_cases.jsonl

The environment is Hugging Face's (transformers, chat_template_utils.py): sandboxed, trim_blocks, lstrip_blocks, loop
controls, tojson = json.dumps, raise_exception, strftime_now, {% generation %}. One difference: lists and dicts may be
changed (append, update, ...), as they may in ours. Each line is {"template", "expected"} or {"template", "error"};
the error text is jinja2's, for the reader: the test asks for an error, not for its words.
"""
import datetime
import json
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

CONTEXT = {
    "name": "World", "empty": "", "uni": "Grüße, 世界 🙂", "html": "<a href='x'>&\"</a>", "n": 7, "neg": -7, "zero": 0,
    "big": 2**63 - 1, "f": 3.5, "yes": True, "no": False, "nothing": None, "nums": [3, 1, 2], "words": ["b", "A", "c"],
    "nested": [[1, 2], [3, [4, 5]]], "d": {"b": 1, "a": 2, "items": "key"}, "text": "line one\n  line two\n\nlast",
    "users": [{"name": "Bob", "age": 30, "tags": ["x", "y"], "ok": True}, {"name": "alice", "age": 25, "tags": [], "ok": False},
              {"name": "Carl", "age": 30, "tags": ["z"]}],
    "tool": {"type": "function", "function": {"name": "f", "parameters": {"p": {"type": "string", "enum": ["é", "<"]}}}},
}

CASES = []


def case(*templates):
    CASES.extend(templates)


def expr(*expressions):
    CASES.extend("{{ " + e + " }}" for e in expressions)


# Literals and printing.
expr("1", "-1", "1_000", "0x1F", "0o17", "0b101", "1.5", "1e3", "1.5e-7", "1e16", "123456789012345678", "1e22", "0.0001", "0.00001",
     "1.0", "-0.0", "true", "True", "none", "None", "'a' 'b'", "'it''s'", "\"q'\"", "'a\\nb\\t\\x41\\u00e9'", "'\\q'", "[]", "()", "(1,)",
     "(1, 2)", "1, 2", "{}", "{'a': 1, 'b': [none, true]}", "[1, 'a', 2.0, none, {'k': ()}]", "['it\\'s', \"a\\\"b\", 'a\\\\b']",
     "['\\n\\t\\x00\\x7f é 世 \\u200b']", "big", "big + 1", "big * 4", "f", "uni", "[uni]", "0.1 + 0.2", "1/3", "100 * 1.1",
     "5e-324", "1.7976931348623157e308", "2 ** 0.5", "[1.0, 2.5e10, 1e-5]", "{1: 2, 2.5: 3, none: 4, true: 5}", "{1: 'a', true: 'b', 1.0: 'c'}")
# Arithmetic.
expr("1 + 2 * 3", "(1 + 2) * 3", "7 // 2", "-7 // 2", "7 // -2", "-7 % 3", "7 % -3", "7.5 % 2", "-7.5 % 2", "7.5 // 2", "-7.5 // 2", "1 / 2",
     "4 / 2", "2 ** 10", "2 ** -1", "-2 ** 2", "2 ** 3 ** 2", "(-8) ** 3", "1 / 0", "1 // 0", "1 % 0", "1.0 / 0", "0 ** -1", "true + true",
     "'a' * 3", "3 * 'a'", "'a' * -1", "[1, 2] * 2", "(1,) * 2", "[1] + [2]", "(1,) + (2,)", "[1] + (2,)", "'a' + 'b'", "'a' + 1", "1 + 'a'",
     "'a' ~ 1 ~ none ~ 2.0", "1 ~ 2 + 3", "-n", "+n", "-'a'", "not n", "-true", "n - 10", "'a' - 'b'", "none + 1", "d + d", "1 + 2 ~ 3 * 4",
     "10 - 3 - 2", "100 // 7 // 2", "2 * 3 % 4", "1e308 * 10", "-1 ** 2", "7 % 2.5", "1.5 ** 2", "0.0 // 1", "-0.0 % 1")
# Comparison and logic.
expr("1 < 2", "1 < 2 < 3", "3 > 2 > 2", "1 == 1.0", "1 == true", "'a' == 'a'", "'a' < 'b'", "'a' < 1", "none < 1", "[1, 2] < [1, 3]",
     "[1] == [1.0]", "(1,) == [1]", "{'a': 1} == {'a': 1}", "1 != 2", "1 in nums", "4 not in nums", "'or' in name", "'' in name", "1 in name",
     "'a' in d", "1 in 5", "'x' in missing", "missing in 'x'", "none in [none]", "1 and 2", "0 and 2", "0 or 'x'", "'' or none", "not ''", "not not 1",
     "1 if yes", "1 if no", "1 if no else 2", "1 if no else 2 if no else 3", "1 or 2 and 0", "not 1 == 2", "1 == 1 == 1", "nothing is none",
     "missing == missing2", "missing == none", "missing < 1", "1 <= 1.0", "2 >= 3", "'é' > 'z'", "9007199254740993 == 9007199254740992.0",
     "9007199254740993 > 9007199254740992.0", "(1, 'a') < (1, 'b')", "[1, 'a'] < [1, 2]", "{} < {}", "'a' is in 'abc'", "n is in nums")
# Undefined.
expr("missing", "missing.x", "missing['x']", "missing + 1", "1 + missing", "missing ~ 'x'", "missing()", "missing|length", "missing|list", "missing|upper",
     "missing|default('d')", "missing.x|default('d')", "d.nope", "d.nope.x", "d['nope']", "nums[10]", "nums['x']", "name.nope", "name[99]", "name[-1]",
     "nothing.x", "nothing['x']", "5 .x", "missing is defined", "d.nope is undefined", "d.x.y is defined", "missing|tojson", "missing|string", "missing|trim",
     "-missing", "[missing]", "missing|join", "missing|first", "missing|last", "missing|int", "missing|float", "missing|replace('a','b')", "missing|items|list",
     "missing|tojson|default('x')", "''|default('d')", "''|default('d', true)", "none|default('d')", "missing|default", "missing|d(1) + 1", "missing|map('upper')|list",
     "missing|select|list", "missing|sort", "missing|unique|list", "missing|sum", "missing|min", "missing|max", "missing|dictsort", "missing|batch(2)|list",
     "missing|abs", "missing|round", "missing|indent", "missing|title", "missing|capitalize", "missing|wordcount", "missing|escape", "missing|reverse|list",
     "missing is none", "missing is string", "missing is mapping", "missing is sequence", "missing is iterable", "missing is callable", "missing is number",
     "missing is odd", "missing is lower", "missing is true", "missing is boolean", "missing[1:]", "'%s' % missing", "'{}'.format(missing)", "missing ** 2",
     "missing and missing.x", "(missing or 'x')|upper", "missing not in []")
# Attributes, elements, slices.
expr("d.a", "d['a']", "d.items", "d['items']", "d.items()|list", "d.keys()|list", "d.values()|list", "d.items()", "d.keys()", "d.get('a')", "d.get('x')", "d.get('x', 9)",
     "nums.0", "nums[0]", "nums[-1]", "nums[-4]", "nested.1.1.0", "nested[1][1][0]", "name[0]", "name[1:3]", "name[:-1]", "name[-3:]", "name[::-1]", "name[::2]", "name[10:]",
     "uni[0:7]", "uni[-2:]", "uni[2]", "uni[-1]", "uni|length", "uni[::-1]", "nums[:]", "nums[1:]", "nums[::-1]", "nums[::0]", "nums['a':]", "nums[5:1]", "nums[-2:-1]", "nums[1:100]",
     "range(5)[2]", "range(5)[1:3]", "range(5)[1:3]|list", "(1,2,3)[1:]", "n[0]", "n[1:]", "d[1:]", "d[[]]", "name.upper", "name['upper']()", "name.__class__", "d.__class__",
     "''.__class__.__mro__", "name.upper()", "users[0].name", "users[0]['name']", "users[-1].tags[0]", "nums[true]", "nums[1.0]", "name[none]", "d.a.b.c", "d.__len__", "[].__class__",
     "nums[-1:0:-1]", "name[4:0:-2]", "nums[100:-100:-1]", "nums[9999999999999999999999]", "name[-2]", "uni[-20]", "uni[3:100]", "''[0]", "name[true:]")
# Calls and argument errors.
expr("range(3)|list", "range(1, 4)|list", "range(5, 0, -2)|list", "range(0)|list", "range(3)", "range(1, 10, 3)", "range(10000000000)|length", "range(1, 2, 0)", "range('a')", "range()",
     "dict(a=1, b=2)", "dict([('a', 1)], b=2)", "dict({'a': 1}, a=3)", "dict(1)", "name.upper(1)", "name.nope()", "n()", "d()", "'a'.join(['x', 'y'])", "', '.join([1])",
     "[1, 2]|join(d='-')", "[1, 2]|join('-', attribute='x')", "nums|sort(reverse=true)", "nums|sort(nope=1)", "nums|sort(true, reverse=true)", "dict(**d)", "range(*[1, 4])|list",
     "namespace(a=1).a", "namespace(a=1)", "namespace({'b': 2}).b", "namespace(a=1)['a']", "namespace().nope", "raise_exception('boom')", "raise_exception(1)", "raise_exception()",
     "strftime_now('%Y-%m-%d')", "strftime_now('%d %b %Y, %H:%M:%S')", "strftime_now('%A %B %-d %j %p %I %y %%')", "strftime_now('%a %e %U %W %V %G %u %w')", "strftime_now('%D %F %T %R %x %X %c')",
     "strftime_now('')", "strftime_now()", "strftime_now(1)", "strftime_now('%-m/%-d %-H:%M %Z%z.')", "strftime_now('世 %B')")
# Filters.
expr("name|upper", "name|lower", "uni|upper", "uni|lower", "'straße ŉ ﬁ ǆ Σας ΣΑΣ İ'|upper", "'ΑΣ ΟΔΟΣ Σ ÀÉ İ Ǆ'|lower", "'hello world-foo (bar) x_y'|title", "'ǆ ǳ ﬁ'|title", "'ǆabc'|capitalize",
     "\"they're bill's\"|title", "'HELLO wORLD'|capitalize", "'  x '|trim", "'xxaxx'|trim('x')", "'xyaxy'|trim('xy')", "' \\u00a0\\u3000a\\u2003 '|trim", "123|trim", "none|upper", "1|upper",
     "name|replace('o', '0')", "name|replace('o', '0', 1)", "'aaa'|replace('a', 'b', 2)", "'abc'|replace('', '-')", "'abc'|replace('', '-', 2)", "1|replace(1, 2)", "'aaa'|replace('aa', 'a')", "'abc'|replace('b', 1)",
     "name|length", "nums|length", "d|length", "5|length", "none|length", "nums|count", "nums|first", "nums|last", "[]|first", "[]|last", "name|first", "name|last", "''|first", "uni|last", "d|first", "5|first",
     "nums|join", "nums|join(', ')", "users|join(', ', attribute='name')", "name|join('.')", "d|join(',')", "[1, none, 'a']|join('-')", "nums|join(1)", "5|join",
     "nums|sort", "words|sort", "words|sort(case_sensitive=true)", "users|sort(attribute='name')|map(attribute='name')|list", "users|sort(attribute='age,name')|map(attribute='name')|list",
     "users|sort(attribute='age', reverse=true)|map(attribute='name')|list", "[1, 'a']|sort", "[none, 1]|sort", "d|sort", "name|sort", "[[2, 1], [1, 5]]|sort", "[3, 1.5, true]|sort", "nested|sort(attribute='0')",
     "nums|min", "nums|max", "words|min", "words|max", "[]|min", "users|min(attribute='age')", "users|max(attribute='age')", "[1, 'a']|max", "nums|sum", "[1.5, 2]|sum", "users|sum(attribute='age')", "nums|sum(start=10)",
     "['a']|sum", "[[1], [2]]|sum(start=[])", "[]|sum", "nums|reverse|list", "name|reverse", "d|reverse|list", "5|reverse", "nums|unique|list", "['a', 'A', 'b']|unique|list", "['a', 'A']|unique(true)|list",
     "users|unique(attribute='age')|map(attribute='name')|list", "[[1]]|unique|list", "[1, 1.0, true]|unique|list", "nums|list", "name|list", "d|list", "uni|list", "5|list", "nums|map('string')|list",
     "words|map('upper')|join", "users|map(attribute='name')|list", "users|map(attribute='nope')|list", "users|map(attribute='nope', default='-')|list", "users|map(attribute='tags.0')|list", "users|map(attribute='x.y', default='-')|list", "users|groupby('x.y', default=0)|length", "(html|safe)|list", "'%s' % d.nope", "'x' % d.nope", "users|map('nope')|list",
     "nums|map|list", "[['a', 1]]|map(attribute=0)|list", "['a,b', 'c']|map('replace', ',', ';')|list", "nums|select('odd')|list", "nums|select|list", "[0, 1, '', none]|select|list", "nums|reject('odd')|list",
     "[0, 1, '']|reject|list", "nums|select('gt', 1)|list", "nums|select('>', 1)|list", "nums|select('divisibleby', 3)|list", "users|selectattr('ok')|map(attribute='name')|list", "users|selectattr('ok', 'defined')|map(attribute='name')|list",
     "users|selectattr('age', 'eq', 30)|map(attribute='name')|list", "users|rejectattr('age', 'equalto', 30)|map(attribute='name')|list", "users|rejectattr('ok')|map(attribute='name')|list", "users|selectattr|list", "nums|select('nope')|list",
     "users|selectattr('name', 'in', ['Bob'])|list|length", "d|items|list", "d|items", "nums|items|list", "d|dictsort", "d|dictsort(true)", "{'b': 1, 'A': 2}|dictsort", "{'b': 1, 'A': 2}|dictsort(true)", "d|dictsort(by='value', reverse=true)",
     "{'a': 3, 'b': 1}|dictsort(by='value')", "{'a': 3}|dictsort(by='x')", "users|groupby('age')|map(attribute='grouper')|list", "users|groupby('age')|map(attribute='list')|map('length')|list",
     "['b', 'A', 'a']|groupby('0')", "[1, 2, 3, 4, 5]|batch(2)|list", "[1, 2, 3]|batch(2, 0)|list", "[1, 2, 3, 4, 5]|slice(2)|list", "[1, 2, 3]|slice(2, 'x')|list", "[1, 2]|slice(0)|list", "[]|batch(3)|list")
expr("tool|tojson", "tool|tojson(indent=2)", "tool|tojson(indent=0)", "[]|tojson(indent=2)", "{}|tojson(indent=4)", "[1, [], {}, [2]]|tojson(indent=1)", "uni|tojson", "uni|tojson(ensure_ascii=true)", "html|tojson", "'\\x00\\x1f\\x7f\\n\\u2028'|tojson",
     "[1, 1.0, 1e100, true, none, 'a\\\\b\"c/']|tojson", "{1: 2, none: 3, true: 4, 1.5: 5}|tojson", "{(1, 2): 3}|tojson", "(1, 2)|tojson", "nums|map('string')|tojson", "d.items()|tojson", "range(3)|tojson", "d|tojson(sort_keys=true)",
     "d|tojson(separators=(',', ':'))", "d|tojson(indent='\\t')", "d|tojson(true, 2)", "'1e400'|float|tojson", "namespace(a=1)|tojson", "'🙂'|tojson(ensure_ascii=true)", "[1,2]|tojson(indent=2, separators=(', ', '='))", "-0.0|tojson",
     "5|string + 'a'", "1.0|string", "none|string", "nums|string", "'12'|int", "'12.7'|int", "12.7|int", "-12.7|int", "'x'|int", "'x'|int(5)", "'0x1f'|int(0, 16)", "'1f'|int(0, 16)", "'0b11'|int(0, 0)", "' 7 '|int", "'1_000'|int", "none|int",
     "[]|int", "true|int", "'1e3'|int", "''|int", "'1.5'|float", "'x'|float", "'x'|float(2)", "7|float", "'inf'|float", "'nan'|float", "none|float", "'1e5'|float", "-3|abs", "-3.5|abs", "'a'|abs", "42.55|round", "42.55|round(1)",
     "42|round", "2.5|round", "3.5|round", "-2.5|round", "42.55|round(1, 'floor')", "42.55|round(1, 'ceil')", "42.1|round(0, 'ceil')", "1234|round(-2)", "1250|round(-2)", "1350|round(-2)", "12345.678|round(-2)", "2.675|round(2)", "'a'|round", "1|round(method='x')",
     "1.0|round(2)", "0.5|round|int", "text|indent", "text|indent(2)", "text|indent(2, true)", "text|indent(2, true, true)", "text|indent('> ')", "text|indent(first=true)", "'a\\n'|indent", "''|indent", "'a\\r\\nb'|indent", "'\\n\\n'|indent(2, blank=true)", "5|indent",
     "'hello'|center(11)", "'ab'|center(5)", "'abc'|center(6)", "'x'|center|length", "'foo bar baz qux'|truncate(9)", "'foo bar baz qux'|truncate(9, true)", "'foo bar baz qux'|truncate(11)", "'foo bar baz qux'|truncate(9, false, '..', 0)",
     "'abc'|truncate(2)", "'foo bar'|truncate(255)", "'a b  c_d, e-f'|wordcount", "html|escape", "html|e", "html|e|e", "html|safe", "html|forceescape", "html|e|string", "5|e", "none|escape", "html|safe + html", "html + (html|safe)", "html|safe ~ html",
     "html ~ (html|safe)", "(html|safe)|upper", "(html|e)|replace('&', 'x')", "[html|safe]", "('<%s>'|safe) % html", "('{}'|safe).format(html)", "[html|safe, html]|join('<')", "('<'|safe).join(['<', '>'|safe])", "(html|e)|length", "(html|safe) * 2", "html|safe is escaped",
     "html is escaped", "(html|safe).upper()", "(html|safe)[0:2] + '<'", "('a<b'|safe).split('<')[0] + '<'", "('<'|safe).replace('<', '<<')", "('  <'|safe)|trim ~ '<'", "(html|safe) == html", "'a b/c?d=é&'|urlencode", "{'a b': 1, 'c': 'd&e'}|urlencode", "[('a', '/')]|urlencode", "5|urlencode",
     "'%s is %d' % ('a', 5)", "'%s' % 'x'", "'%d' % 3.7", "'%5d|%-5d|%05d|%+d' % (1, 2, 3, 4)", "'%.2f %e %g' % (1.005, 12345.678, 0.0001)", "'%x %X %o %#x' % (255, 255, 8, 255)", "'%s %s' % (1,)", "'%s' % (1, 2)", "'%(a)s' % {'a': 1}", "'%%'", "'%%' % ()",
     "'%r' % 'a'", "'%s' % [1, 2]", "'%s' % nums", "'%q' % 1", "'%d' % 'a'", "'%c%c' % ('a', 66)", "'%5.1f|' % 3.14159", "'%-10s|%10s|' % ('ab', 'cd')", "'%.2s' % 'abc'", "'%*d' % (5, 3)", "'%s %s'|format(1, 'b')", "'%(x)s'|format(x=3)", "'%s'|format(1, a=2)", "'a %s'|format('b')", "'%i' % true",
     "{'a': none, 'b': '<', 'c': 1}|xmlattr", "{}|xmlattr", "{'a b': 1}|xmlattr", "{'a': 1}|xmlattr(false)", "1024|filesizeformat", "1000|filesizeformat", "1|filesizeformat", "999|filesizeformat", "1500000|filesizeformat", "1048576|filesizeformat(true)", "users|first|attr('name')", "name|attr('upper')", "name|nope", "name is nope", "d|attr('a')", "d|attr('items')")
# str methods.
expr("name.lower()", "' a '.strip()", "'xxa'.lstrip('x')", "'axx'.rstrip('x')", "'abcba'.strip('ab')", "'a b  c '.split()", "'a,b,,c'.split(',')", "'a,b,c'.split(',', 1)", "'a,b,c'.rsplit(',', 1)", "' a b c '.split(None, 1)", "' a b c '.rsplit(None, 1)", "'a b'.split('')", "''.split()", "''.split(',')",
     "'abc'.split('b', -1)", "'a--b--c'.split('--', maxsplit=1)", "'a\\nb\\r\\nc\\rd\\n'.splitlines()", "'a\\nb\\n'.splitlines(true)", "'a\\u2028b\\x0bc\\x85d'.splitlines()", "''.splitlines()", "name.startswith('Wo')", "name.startswith(('X', 'W'))", "name.startswith('o', 1)", "name.endswith('ld')", "name.endswith(('x', 'd'))",
     "name.startswith(1)", "'hello World'.title()", "\"they're x1y\".title()", "'hELLO'.capitalize()", "'aBc'.swapcase()", "'aXbXc'.replace('X', '-')", "'aXbXc'.replace('X', '-', 1)", "name.find('o')", "name.find('z')", "uni.find('世')", "uni.rfind('e')", "name.index('z')", "'abcabc'.rfind('bc')", "'abc'.find('b', 2)", "'abc'.find('', 3)",
     "'abc'.find('', 4)", "name.count('o')", "'aaaa'.count('aa')", "'abc'.count('')", "'a=b=c'.partition('=')", "'a=b=c'.rpartition('=')", "'abc'.partition('x')", "'abc'.rpartition('x')", "'12'.isdigit()", "''.isdigit()", "'²'.isdigit()", "'²'.isdecimal()", "'½'.isnumeric()", "'三'.isnumeric()", "'abc'.isalpha()", "'ab1'.isalnum()", "' \\t'.isspace()",
     "'ABC'.isupper()", "'aBC'.isupper()", "'abc1'.islower()", "'1'.islower()", "'Ab Cd'.istitle()", "'AB'.istitle()", "'é'.isascii()", "'a_1'.isidentifier()", "'1a'.isidentifier()", "'a\\n'.isprintable()", "'ab'.ljust(4, '.')", "'ab'.rjust(4)", "'ab'.center(5, '*')", "'abc'.center(6, '*')", "'-5'.zfill(4)", "'5'.zfill(3)", "'a\\tb'.expandtabs(4)", "'prefix-x'.removeprefix('prefix-')",
     "'x.py'.removesuffix('.py')", "'ẞß'.casefold() == 'x'", "'{} {}'.format(1, 'a')", "'{0} {1} {0}'.format('x', 'y')", "'{a} {b!r}'.format(a=1, b='z')", "'{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c')", "'{:05d} {:,} {:.2f} {:x} {:+d} {:%}'.format(42, 1234567, 3.14159, 255, 3, 0.5)",
     "'{a[k]} {b}'.format(a={'k': 1}, b=2)", "'{u[name]}'.format(u=users[0])", "'{{}}'.format()", "'{}'.format()", "'{x}'.format()", "'{'.format()", "'{:{}}'.format('a', 4)", "'{:*^9}'.format('mid')", "'{:e} {:g} {:g}'.format(12345.678, 0.00001, 1e20)", "'{!s:>4}'.format(7)", "'{:b} {:o} {:#x} {:#b}'.format(5, 8, 255, 5)", "'{:_}'.format(1234567)",
     "'{} {0}'.format(1)", "'{:d}'.format('a')", "'{:10.3f}|{:<10}|{:^10}'.format(3.14159, 2, 1.5)", "'{:.3}'.format('abcdef')", "'{:.3}'.format(3.14159)", "'{0.name}'.format(users[0])", "'{a}'.format_map({'a': 1})", "'{}'.format(none)", "'{:>6}'.format(none)", "'{} {}'.format([1], {'a': 'b'})", "'{:}'.format(1.0)", "'{:,.2f}'.format(1234567.891)", "'{:08.2f}'.format(-3.14159)", "'{:c}'.format(65)")
# list and dict methods.
expr("[1, 2, 1].count(1)", "[1, 2].index(2)", "[1].index(5)", "(1, 2).index(2)", "[3, 1].copy()", "(1, 1).count(1)", "(1,).append(2)", "d.copy()", "d.popitem", "1.5.is_integer()", "(2.0).is_integer()", "n.nope")
case("{% set l = [1] %}{% set _ = l.append(2) %}{{ l }}", "{% set l = [1, 2, 3] %}{{ l.pop() }}{{ l.pop(0) }}{{ l }}", "{% set l = [] %}{{ l.pop() }}", "{% set l = [1] %}{{ l.extend([2, 3]) }}{{ l }}", "{% set l = [1, 3] %}{{ l.insert(1, 2) }}{{ l }}", "{% set l = [1, 2] %}{{ l.remove(1) }}{{ l }}{{ l.remove(9) }}",
     "{% set l = [2, 1] %}{{ l.reverse() }}{{ l }}{{ l.sort() }}{{ l }}{{ l.clear() }}{{ l }}", "{% set x = {'a': 1} %}{{ x.update({'b': 2}) }}{{ x }}", "{% set x = {'a': 1} %}{{ x.update(b=2, c=3) }}{{ x }}", "{% set x = {'a': 1} %}{{ x.pop('a') }}{{ x }}{{ x.pop('z', 5) }}", "{% set x = {} %}{{ x.pop('a') }}",
     "{% set x = {} %}{{ x.setdefault('a', 1) }}{{ x.setdefault('a', 2) }}{{ x }}", "{% set x = {'a': 1, 'b': 2} %}{{ x.popitem() }}{{ x }}{{ x.clear() }}{{ x }}", "{% set x = {} %}{% for i in range(20) %}{% set _ = x.update({i: i * i}) %}{% endfor %}{{ x[19] }} {{ x.pop(3) }} {{ x[4] }} {{ x|length }} {{ 3 in x }}", "{% do [].append(1) %}x")
# Tests.
expr("1 is odd", "2 is even", "9 is divisibleby 3", "9 is divisibleby(4)", "1 is number", "true is number", "1.5 is float", "true is integer", "1 is integer", "'a' is string", "1 is string", "d is mapping", "nums is mapping", "nums is sequence", "d is sequence", "'a' is sequence", "5 is sequence", "range(2) is sequence",
     "nums|map('string') is sequence", "d.items() is sequence", "5 is iterable", "'a' is iterable", "none is iterable", "d is iterable", "true is true", "1 is true", "false is false", "0 is false", "yes is boolean", "1 is boolean", "none is none", "'a' is lower", "'A' is upper", "'' is lower", "range is callable", "name.upper is callable", "name is callable",
     "1 is sameas 1", "1 is sameas true", "none is sameas none", "nums is sameas nums", "[] is sameas []", "1 is eq 1", "1 is equalto 2", "1 is ne 2", "1 is lt 2", "1 is lessthan 2", "2 is gt 1", "2 is ge 2", "1 is le 0", "'upper' is filter", "'x' is filter", "'odd' is test", "'x' is test", "1 is in [1]", "1 is not in [1]", "1 is not odd", "not 1 is odd",
     "1 is odd and 2 is even", "1 is odd is even", "'a' is odd", "nums is not string", "1 is not none and true", "'a' is string or 1", "name is defined and name", "n is gt 3 and n < 10", "2 is divisibleby 0", "1 is float", "name is in ['World']", "n is number is true")
# Statements.
case("{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %}", "{% if missing %}a{% else %}b{% endif %}", "{% if no %}a{% elif no %}b{% elif yes %}c{% endif %}", "{% for i in nums %}{{ i }},{% endfor %}", "{% for i in [] %}x{% else %}none{% endfor %}", "{% for i in missing %}x{% else %}none{% endfor %}", "{% for i in 5 %}{% endfor %}",
     "{% for i in none %}{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for a, b in [[1, 2], (3, 4)] %}{{ a }}{{ b }} {% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
     "{% for c in uni %}{{ c }}|{% endfor %}", "{% for i in range(6) if i is odd %}{{ loop.index }}:{{ i }}/{{ loop.length }} {% endfor %}", "{% for i in range(3) if i > 9 %}x{% else %}e{% endfor %}",
     "{% for i in nums %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}", "{% for i in nums %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }} {% endfor %}",
     "{% for i in range(3) %}{% for j in range(2) %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% break %}", "{% for i in nums %}{{ loop }}{% endfor %}", "{% for i in nums %}{{ loop.nope }}{% endfor %}",
     "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}", "{% for x in [1] %}{{ loop([2]) }}{% endfor %}", "{{ loop }}", "{% for i in range(2) %}{% endfor %}{{ i }}", "{% set i = 9 %}{% for i in range(2) %}{{ i }}{% endfor %}{{ i }}",
     "{% set x = 1 %}{% for i in range(3) %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(x=0) %}{% for i in range(3) %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set d.x = 1 %}", "{% set missing.x = 1 %}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% if yes %}{% set x = 5 %}{% endif %}{{ x }}",
     "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{% set a = 1, 2 %}{{ a }}", "{% set a, b = [1] %}", "{% set x %}hello {{ name }}{% endset %}{{ x }}|{{ x|length }}", "{% set x | upper | trim %}  hi {% endset %}[{{ x }}]", "{% set x = 1 %}{% set x = x + 1 %}{{ x }}", "{% set ns = namespace(a=1) %}{% set ns.b %}text{% endset %}{{ ns.b }}{{ ns }}", "{% set true = 1 %}", "{% set 5 = 1 %}",
     "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }}", "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
     "{% macro m(a, b=a * 2) %}{{ b }}{% endmacro %}{{ m(4) }}", "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", "{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}body{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a + b }}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}{% endcall %}",
     "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m(x) %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.nope is defined }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% set g = 1 %}{% macro m() %}{{ g }}{% endmacro %}{% set g = 2 %}{{ m() }}", "{% macro m() %}{% set g = 5 %}{{ g }}{% endmacro %}{{ m() }}{{ g }}", "{% for i in range(2) %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
     "{% macro m(a, a2=1, b) %}{% endmacro %}", "{% macro outer(x) %}{% macro inner(y) %}{{ x }}{{ y }}{% endmacro %}{{ inner(2) }}{% endmacro %}{{ outer(1) }}", "{{ m }}{% macro m() %}{% endmacro %}{{ m }}", "{% macro m() %} a {% endmacro %}{{ m()|trim|upper }}", "{% filter upper %}abc {{ name }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aXa{% endfilter %}", "{% filter nope %}{% endfilter %}",
     "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x }}", "{% raw %}{{ x }}{% if %}{% endraw %}", "{% raw -%}  a {%- endraw %}", "a{# comment #}b", "a {#- c -#} b", "{# {{ x }} {% if %} #}x", "{% generation %}a{{ name }}{% endgeneration %}b", "{% generation %}{% set q = 1 %}{% endgeneration %}{{ q }}", "{% print 1 %}",
     "{% autoescape false %}{{ html }}{% endautoescape %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}", "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{{ j() }}", "{% set x = nums|map('string') %}{{ x|list }}{{ x|list }}", "{% set x = nums|select('odd') %}{{ x|first }}{{ x|list }}", "{% for x in nums|reverse %}{{ x }}{{ loop.last }}{% endfor %}",
     "{% for k, v in d|dictsort %}{{ k }}{{ v }}{% endfor %}", "{% for g in users|groupby('age') %}{{ g.grouper }}:{% for u in g.list %}{{ u.name }} {% endfor %};{% endfor %}", "{% for age, list in users|groupby('age') %}{{ age }}{{ list|length }}{% endfor %}", "{% for i in nums if i in [1, 2] %}{{ i }}{% endfor %}", "{% for a in 'ab' for b in 'cd' %}{% endfor %}", "{% for i in (1, 2) %}{{ i }}{% endfor %}", "{% for i in 1, 2 %}{{ i }}{% endfor %}",
     "{% for i in range(3) %}{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}", "{% if 'a' is nope %}{% endif %}x", "{% if no %}{{ 1|nope }}{% endif %}x", "{{ 1|nope if no else 'y' }}", "{% set x = 'outer' %}{% macro m(x) %}{{ x }}{% endmacro %}{{ m('inner') }}{{ x }}", "{% macro m(caller) %}{% endmacro %}", "{% macro m(caller=none) %}{{ caller }}{% endmacro %}{{ m() }}")
# Whitespace.
case("a\n{% if yes %}\nb\n{% endif %}\nc\n", "  {% if yes %}\n  x\n  {% endif %}\ny", "a  {{- name -}}  b", "a  {%- if yes -%}  b  {%- endif -%}  c", "{%+ if yes %}x{% endif %}", "  {%+ if yes %}x{% endif %}", "x\n  {%- if yes %}\n y{% endif %}", "{% if yes +%}\nx{% endif %}", "{{ name }}\n", "{{ name }}\n\n", "\n\n{{ name }}", "a\r\nb\rc", "  {# c #}\nx", "x  {# c #}\ny", "{#- c +#}\nx",
     "  {{ name }}\n", "\t{% set x = 1 %}\n{{ x }}", "a {% set x = 1 %} b", "{% for i in range(2) %}\n  {{ i }}\n{% endfor %}\nend", "{% for i in range(2) -%}\n  {{ i }}\n{%- endfor %}\nend", "{% if yes %}{% endif %}\n  \n  {% if yes %} z {% endif %}", "a{% raw %}\n b\n{% endraw %}\nc", "  {% raw %}x{% endraw %}\n y", "{%- raw %} x {% endraw -%}  y", "{{-name-}}", "{{ 'a' -}}\n\n b", "a\n\n{{- 'b' }}", "{{ name\n}}\nx", "{%\nif yes\n%}y{% endif %}",
     "{{+ 5 }}", "\u00a0 {%- if yes %}x{% endif %}", "{% if yes %} {#- a -#} {% endif %}", "x {%- set a = 1 -%} y", "{% set a = 1 %}   \n b", "a\n   \n  {% if yes %}b{% endif %}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}.a.b }}", "{{'}}'}}", "{{ \"%}\" }}", "{ { } } {", "{", "{%", "{{", "{#", "a{", "}}", "%}", "{{}}", "{%%}", "{{ }}", "{{ '")
# Syntax errors.
case("{% if %}x{% endif %}", "{% if yes %}", "{% endif %}", "{% for x nums %}{% endfor %}", "{% for x in %}{% endfor %}", "{% nope %}", "{% else %}", "{{ 1 + }}", "{{ (1 }}", "{{ 1) }}", "{{ [1, }}", "{{ [1,] }}", "{{ {1} }}", "{{ {'a': 1,} }}", "{{ a b }}", "{{ 'a }}", "{{ 1 ? 2 }}", "{{ a. }}", "{{ a.1b }}", "{{ a[ }}", "{{ a[] }}", "{{ f(a=1, 2) }}", "{{ f(*a, 1) }}", "{{ f(a=1, a=2) }}", "{{ x| }}", "{{ x|1 }}", "{{ x is }}", "{{ x is not }}",
     "{% set %}", "{% set x %}", "{% set x = %}", "{% macro %}{% endmacro %}", "{% macro m %}{% endmacro %}", "{% call x %}{% endcall %}", "{% filter %}{% endfilter %}", "{{ not }}", "{{ 1 not 2 }}", "{{ == 1 }}", "{{ 1 == }}", "{{ a = 1 }}", "{{ $ }}", "{{ a; b }}", "{{ 1if yes else 2 }}", "{{ 'a'if yes else'b' }}", "{{ 007 }}", "{{ 1__0 }}", "{{ 0x }}", "{{ 1.e5 }}", "{{ 1. }}", "{{ .5 }}", "{{ 1e }}", "{{ a!b }}", "{% if yes %}{% endfor %}", "{% for x in nums %}{% endif %}", "{% raw %}", "{# x",
     "{% if yes %}{% else %}{% else %}{% endif %}", "{% for x in nums %}{% else %}{% elif %}{% endfor %}", "{{ '\\x4' }}", "{{ '\\u12' }}", "{% set x = 1 = 2 %}", "{{ (1, 2, 3 }}", "{{ ]1[ }}", "{% if yes: %}x{% endif %}", "{% for x in nums: %}{{ x }}{% endfor %}", "{% extends 'a' %}", "{% include 'a' %}", "{% import 'a' as b %}", "{% from 'a' import b %}", "{% endset %}", "{% with a %}{% endwith %}", "{{ loop.x }}")


def environment(now):
    """Hugging Face's, with strftime_now() at `now`."""
    env = jinja2.sandbox.SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                              extensions=[jinja2.ext.loopcontrols, jinja2.ext.do])

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

        def _run(self, caller):
            return caller()

    env.add_extension(Generation)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Namespace(jinja2.utils.Namespace):  # Hugging Face's: no attribute may start with an underscore
        def __setitem__(self, name, value):
            if name.startswith("_"):
                raise jinja2.exceptions.SecurityError(name)
            super().__setitem__(name, value)

    env.filters["tojson"] = tojson
    env.globals["namespace"] = Namespace
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: now.strftime(format)
    return env


def main():
    env = environment(datetime.datetime(2026, 1, 5, 9, 7, 3))
    print(json.dumps({"context": CONTEXT}, ensure_ascii=False))
    seen = set()
    for template in CASES:
        if template in seen:
            continue
        seen.add(template)
        row = {"template": template}
        try:
            row["expected"] = env.from_string(template).render(json.loads(json.dumps(CONTEXT)))
        except Exception as e:  # whatever Python raises is an error for us
            row["error"] = f"{type(e).__name__}: {e}"[:200]
        if " at 0x" in row.get("expected", ""):
            continue  # addresses are nobody's golden
        print(json.dumps(row, ensure_ascii=False))
    print(f"{len(seen)} cases", file=sys.stderr)


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    main()
