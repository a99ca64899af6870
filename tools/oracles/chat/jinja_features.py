"""Small templates, each for one feature of the language, with the context it is rendered with."""

# Expressions, rendered with DATA as {{ expression }}.
DATA = {"n": 7, "neg": -7, "x": 2.5, "yes": True, "no": False, "nil": None, "s": "Hello World", "u": "naïve ☕ 日本 é", "empty": "",
        "l": [3, 1, 2], "mixed": [1, "a", None, True, 2.0, [1], {"k": "v'"}], "d": {"b": 1, "a": [1, 2], "items": "own"},
        "rows": [{"name": "b", "v": 2, "t": {"q": 1}}, {"name": "A", "v": 10}, {"name": "c", "v": 1, "ok": True}],
        "words": "one two  three\tfour\nfive", "lines": "a\nb\r\nc\n\nd", "html": "<a href=\"x\">'&'</a>", "esc": "q\" b\\ n\n t\t c\x01 d\x7f /"}
EXPRESSIONS = r"""
1 + 2 * 3
(1 + 2) * 3
7 // 2
-7 // 2
7 // -2
7 % 3
-7 % 3
7 % -3
7 / 2
6 / 2
7.5 // 2
-7.5 // 2
-7.5 % 2
2 ** 10
2 ** -1
2 ** 0.5
2 ** 3 ** 2
-2 ** 2
- 5 + 3
+n
-x
-neg
1_000 + 0x1F + 0b101 + 0o17
1.5e3
1e16
1e15
1e-5
0.0001
123456789.125
1.0
3.0 * 2
0.1 + 0.2
1 / 3
10.0 ** 20
n + x
yes + yes
'a' + 'b'
'a' 'b' "c"
'ab' * 3
3 * 'ab'
[1, 2] * 2
[1] + [2, 3]
(1, 2) + (3,)
'a' ~ 1 ~ None ~ True ~ 1.0 ~ missing
1 ~ 2 + 3
1 + 2 ~ 3
'%s is %d and %.2f%%' % ('a', 3, 2.345)
'%s' % 5
'%5d|%-5d|%05d|%x' % (42, 42, 42, 255)
'%r' % ('a',)
'%s and %s' | format('a', 2)
'%s' % [1, 'a']
'{} {}'.format(1, 'b')
'{1} {0} {{}} {name}'.format('a', 'b', name='c')
1 == 1.0
1 == True
'1' == 1
'a' < 'b'
[1, 2] < [1, 3]
[1, 2] == [1, 2]
[1, 2] == (1, 2)
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2 != 1
none == none
missing == none
missing == missing2
missing != 1
'a' in 'abc'
'' in 'abc'
'a' not in 'abc'
3 in l
'3' in l
'b' in d
'z' not in d
1 in missing
None in mixed
not yes
not not 5
yes and no
yes and 'x'
no or 'y'
'' or none
0 or [] or {}
1 if yes else 2
1 if no
1 if no else 2 if no else 3
(1 if no) is defined
yes and not no or no
not 1 == 2
not n is odd
n is odd and n is not even
n is divisibleby 7
n is divisibleby(2)
n is eq 7
n is equalto(8)
n is == 7
n is ne 7
n is lt 8
n is ge 7 and n is le 7 and n is gt 6
n is lessthan 7
n is greaterthan 1
n is in [7, 8]
s is in ['x']
missing is defined
missing is undefined
missing is not defined
n is defined
d.zzz is defined
d['zzz'] is undefined
d.zzz is none
nil is none
nil is not none
nil is defined
s is string
n is string
n is number
x is number
yes is number
yes is integer
n is integer
x is integer
x is float
n is float
yes is boolean
n is boolean
yes is true
n is true
no is false
nil is false
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
n is sequence
missing is sequence
(1, 2) is sequence
l is iterable
n is iterable
s is iterable
missing is iterable
'abc' is lower
'ABC' is upper
'aBC' is lower
'' is lower
n is sameas 7
yes is sameas true
n is callable
range is callable
'upper' is filter
'nope' is filter
'odd' is test
s.upper is defined
s.nope is defined
[1, 2, 3,]
[]
()
(1,)
(1, 2)
1, 2
{}
{'a': 1, "b": [1, {'c': none}],}
{1: 2, 'k': (1, 'x')}
mixed
d
rows
esc
[esc]
[u]
["it's", 'say "x"', 'both \' and "']
['a\nb', '\x00', '\u200b', '\xa0', '😀']
'\x41\u00e9\101\n\t\\\'\"\q'
"\"double\" 'single'"
true
True
none
None
[true, false, none]
l[0]
l[-1]
l[5]
l[5] is defined
l.0
l[1:]
l[:-1]
l[::-1]
l[::2]
l[5:1:-1]
l[-2:]
l[1:2]
l[:]
l[10:]
s[0]
s[-1]
s[1:4]
s[::-1]
s[-5:-1]
u[2]
u[6:8]
u[::-1]
u | length
(1, 2, 3)[1:]
d.a
d['a']
d.a[1]
d['items']
d.get('a')
d.get('z')
d.get('z', 5)
d.keys() | list
d.values() | list
d.items() | list
d.b.c is defined
rows[0].t.q
rows[0]['name']
rows[-1].name
missing
[missing]
missing | length
missing | list
missing ~ 'x'
nil
s.upper()
s.lower()
u.upper()
u.title()
s.title()
"they're bill's FRIENDS x1y".title()
s.capitalize()
'ABC dEF' | capitalize
'hello wORLD-foo (bar) x' | title
s | upper
s | lower
'  x '.strip() ~ '|'
'  x '.lstrip() ~ '|'
'  x '.rstrip() ~ '|'
'xxaxbxx'.strip('x')
'xyaxy'.lstrip('yx')
'ab\n\n'.rstrip('\n') ~ '|'
'\u00a0\u2003x\u3000'.strip() ~ '|'
'日本日'.strip('日')
'  x ' | trim ~ '|'
'--x-' | trim('-')
s.split()
s.split(' ')
words.split()
words.split(none, 1)
words.split(maxsplit=2)
words.rsplit(none, 1)
' a  b '.split()
' a  b '.split(' ')
'a,b,c'.split(',', 1)
'a,b,c'.rsplit(',', 1)
'a,b,c'.split(',')[-1]
''.split(',')
''.split()
'abc'.split('</think>')[-1]
'x</think>y</think>z'.split('</think>')[0]
'a.b.c'.partition('.')
'a.b.c'.rpartition('.')
'abc'.partition('.')
lines.splitlines()
lines.splitlines(true)
s.startswith('Hell')
s.startswith(('x', 'H'))
s.endswith('ld')
s.endswith(('a', 'b'))
s.replace('l', 'L')
s.replace('l', 'L', 1)
'abc'.replace('', '-')
s | replace('World', 'You')
s | replace('l', '', 2)
s.find('World')
s.find('zzz')
u.find('日')
s.rfind('o')
s.index('W')
s.count('l')
'aaa'.count('aa')
'abc'.count('')
'-'.join(['a', 'b'])
', '.join(d)
'5'.isdigit()
'ab1'.isalnum()
'ab'.isalpha()
' '.isspace()
'AB'.isupper()
'ab'.islower()
'x'.center(5) ~ '|'
'ab'.center(5) ~ '|'
'x'.ljust(3) ~ '|'
'x'.rjust(3, '0')
'prefix-x'.removeprefix('prefix-')
'x.py'.removesuffix('.py')
l.index(2)
l.count(3)
l | length
d | length
s | count
l | first
l | last
empty | first is defined
l | join
l | join(', ')
rows | join('/', attribute='name')
mixed | join('|')
l | sort
l | sort(reverse=true)
['b', 'A', 'c'] | sort
['b', 'A', 'c'] | sort(case_sensitive=true)
rows | sort(attribute='v') | map(attribute='name') | list
rows | sort(attribute='name') | map(attribute='v') | list
l | reverse | list
s | reverse
l | sum
[0.5, 1] | sum
rows | sum(attribute='v')
l | min
l | max
['b', 'A'] | max
rows | max(attribute='v')
[] | max is defined
[1, 2, 1, 'a', 'A'] | unique | list
rows | map(attribute='t.q') | list
rows | map(attribute='zz', default='none') | list
['a', 'b'] | map('upper') | list
[' a '] | map('trim') | join
l | map('string') | join('+')
['a,b'] | map('replace', ',', ';') | list
l | select('odd') | list
l | select | list
[0, 1, ''] | reject | list
l | reject('gt', 2) | list
rows | selectattr('ok') | list
rows | selectattr('v', 'gt', 1) | map(attribute='name') | list
rows | selectattr('name', 'equalto', 'c') | list | length
rows | rejectattr('ok', 'defined') | map(attribute='name') | list
rows | selectattr('t.q', 'defined') | list | length
l | batch(2) | list
l | batch(2, 0) | list
s | list
d | list
d | items | list
missing | items | list
d | dictsort
{'b': 1, 'A': 3, 'c': 2} | dictsort
{'b': 1, 'A': 3, 'c': 2} | dictsort(true)
{'b': 1, 'A': 3, 'c': 2} | dictsort(by='value')
{'b': 1, 'A': 3, 'c': 2} | dictsort(reverse=true)
5 | string
[1] | string
'5' | int
'5.7' | int
' 12 ' | int
'x' | int
'x' | int(9)
'ff' | int(base=16)
'0x1F' | int(base=16)
5.9 | int
-5.9 | int
true | int
none | int
'2.5' | float
'x' | float
'x' | float(1.5)
'1e3' | float
3 | float
-3 | abs
-2.5 | abs
2.5 | round
3.5 | round
2.675 | round(2)
42.55 | round(1, 'floor')
42.51 | round(1, 'ceil')
42 | round
1234 | round(-2)
2.5 | round | int
missing | default('x')
missing | default
none | default('x')
none | default('x', true)
'' | d('x', true)
'' | d('x')
d.zz | default([])
false | default(1)
html | e
html | escape
html | safe
html
'a\nb\n\nc' | indent
'a\nb\n\nc' | indent(2, true)
'a\nb\n\nc' | indent(2, blank=true)
'a\nb' | indent('> ')
words | wordcount
d | attr('items') is defined
d | tojson
mixed | tojson
esc | tojson
u | tojson
u | tojson(ensure_ascii=true)
'😀' | tojson(ensure_ascii=true)
html | tojson
rows | tojson(indent=2)
d | tojson(indent=0)
[] | tojson(indent=2)
[[], {}, [[]]] | tojson(indent=4)
d | tojson(separators=(',', ':'))
{'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true)
{1: 2, true: 3, none: 4, 1.5: 5} | tojson
[1.0, 1e100, -0.0, 1e-7, 123456789012] | tojson
1e400 | tojson
(1, 2) | tojson
'x' | tojson
none | tojson
range(3) | list
range(1, 4) | list
range(10, 0, -3) | list
range(0) | list
range(3) | length
dict(a=1, b=2)
dict([('a', 1)], c=3)
dict({'x': 1}, **{'y': 2})
namespace(a=1).a
strftime_now('%d %b %Y')
strftime_now('%Y-%m-%d %H:%M:%S')
strftime_now('%A, %B %-d')
n|string + 'x'
-n|abs
(n, x)|sum
'a' if n is odd else 'b'
[1, 2][0] + {'a': 5}['a']
{'a': {'b': [10, 20]}}.a.b[1]
"a" in ["a"] and "b" not in ["a"]
not 'x' in s
'x' if 'x' in s
l[n - 6]
l[:n - 5]
n == 7 and s | length > 3
s|length
(s ~ '!')|upper
('a', 'b')|join
3 in [1, 2] or 3 in (3,)
'a'*0
[1, [2, [3]]] | string
{'a': missing}
{'a': 'b'} | string | length
l is not mapping and l is not string
none is none and missing is undefined
d.items() | length
1 is integer is true
1 < 'a'
'a' + 1
1 + none
missing + 1
missing.x
missing['x']
missing()
d.zz.y
nil.x
nil.x.y
n.x
n.x is defined
s.nope()
s()
l.append(4)
d.update({})
[1] | nope
1 is nope
1 // 0
1 % 0
1 / 0
1.0 / 0
-missing
not missing
len(l)
l | join(', ', 'a', 'b', 'c')
s.upper(1)
s.split('')
range(10000000)
range(1, 2, 0)
'%d' % 'a'
'%s %s' % 'a'
'%s' % ('a', 'b')
'a' in 5
5 in 'a5'
missing in 'abc'
missing < 1
missing | tojson
{'a': missing} | tojson
n | first
n | list
raise_exception('stop: ' ~ n)
raise_exception()
[1, 'a'] | sort
'x' | round
s[0] = 1
{{}}
1 +
(1
[1
{'a' 1}
'open
l[
a b
1 if
x is
| upper
s |
d.
d.1x
not
@
$
a ? b
''.join([1])
{[1]: 2}
{{1: 2}: 3}
"""

STATEMENTS = [
    # set, scopes
    ("{% set a = 1 %}{{ a }}{% set a = a + 1 %}{{ a }}", {}),
    ("{% set a, b = 1, 'x' %}{{ a }}{{ b }}", {}),
    ("{% set a, b = [1] %}", {}),
    ("{% set (a, b) = (1, 2) %}{{ a }}{{ b }}", {}),
    ("{% set x %}a {{ 1 + 1 }} b{% endset %}[{{ x }}]{{ x is string }}", {}),
    ("{% set x | upper | trim %} a b {% endset %}[{{ x }}]", {}),
    ("{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}", {}),
    ("{% if true %}{% set a = 5 %}{% endif %}{{ a }}", {}),
    ("{% set a = 0 %}{% for i in [1, 2] %}{% set a = i %}{{ a }}{% endfor %}{{ a }}", {}),
    ("{% for i in [1, 2] %}{{ q is defined }}{% set q = 1 %}{{ q }}{% endfor %}", {}),
    ("{% set ns = namespace(total=0, n='x') %}{% for i in l %}{% set ns.total = ns.total + i %}{% endfor %}{{ ns.total }}{{ ns.n }}", {"l": [1, 2, 3]}),
    ("{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['b'] }}{{ ns.c is defined }}{{ ns.c }}", {}),
    ("{% set ns = {} %}{% set ns.a = 1 %}", {}),
    ("{% set nope.a = 1 %}", {}),
    ("{% set true = 1 %}", {}),
    ("{{ x }}{% set x = 1 %}{{ x }}", {"x": 0}),
    ("{% set messages = messages[1:] %}{% for m in messages %}{{ m }}{% endfor %}", {"messages": [1, 2, 3]}),
    ("{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", {}),
    ("{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z }}", {}),
    ("{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}", {}),
    # for
    ("{% for x in l %}{{ x }},{% endfor %}", {"l": [1, "a", None]}),
    ("{% for x in l %}{{ x }}{% else %}none{% endfor %}", {"l": []}),
    ("{% for x in missing %}{{ x }}{% else %}none{% endfor %}", {}),
    ("{% for x in none %}{{ x }}{% endfor %}", {}),
    ("{% for x in 5 %}{{ x }}{% endfor %}", {}),
    ("{% for c in 'aé☕' %}[{{ c }}]{% endfor %}", {}),
    ("{% for k in d %}{{ k }}={{ d[k] }};{% endfor %}", {"d": {"b": 1, "a": 2}}),
    ("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", {"d": {"b": 1, "a": [2]}}),
    ("{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}", {"d": {"b": 1, "a": [2]}}),
    ("{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}", {"d": {"b": 1, "a": [2]}}),
    ("{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}", {}),
    ("{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}", {}),
    ("{% for x in l if x is odd %}{{ loop.index }}:{{ x }}{{ loop.last }};{% endfor %}", {"l": [1, 2, 3, 4, 5]}),
    ("{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}", {"l": [1, 2]}),
    ("{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}", {"l": "abc"}),
    ("{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.previtem is defined }} {% endfor %}", {"l": [1, 2, 3]}),
    ("{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }}{% endfor %}", {"l": [1, 1, 2]}),
    ("{% for x in [1, 2] %}{% for y in 'ab' %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }}{% endfor %}", {}),
    ("{% for x in [1, 2] %}{% set outer = loop %}{% for y in 'ab' %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}", {}),
    ("{% for x in [1, 2] %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}", {}),
    ("{% for x in t recursive %}{{ x.n }}{% if x.c %}({{ loop(x.c) }}){% endif %}{{ loop.depth }}{% endfor %}",
     {"t": [{"n": 1, "c": [{"n": 2, "c": [{"n": 3}]}, {"n": 4}]}, {"n": 5}]}),
    ("{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x == 6 %}{% break %}{% endif %}{{ x }}{% endfor %}", {}),
    ("{% for x in [1, 2, 3] %}{% for y in [1, 2, 3] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}", {}),
    ("{% for m in messages[::-1] %}{{ loop.index0 }}{{ m }}{% endfor %}", {"messages": ["a", "b"]}),
    ("{% for x in [1, 2] %}{% endfor %}{{ x is defined }}{{ loop is defined }}", {}),
    ("{% for loop in [1] %}{{ loop }}{% endfor %}", {}),
    ("{% for x in (1, 2) %}{{ x }}{% endfor %}{% for x in 1, 2 %}{{ x }}{% endfor %}", {}),
    ("{% break %}", {}),
    ("{% for x in [1] %}{{ loop(x) }}{% endfor %}", {}),
    # if
    ("{% if a %}A{% elif b %}B{% else %}C{% endif %}", {"a": 0, "b": 1}),
    ("{% if a %}A{% elif b %}B{% elif c %}C{% endif %}", {"a": 0, "b": "", "c": [0]}),
    ("{% if a and b or not c %}yes{% endif %}", {"a": 1, "b": 0, "c": 0}),
    ("{% if 'x' in d and d['x'] is not none %}{{ d.x }}{% endif %}", {"d": {"x": 1}}),
    ("{%- if messages[0]['role'] == 'system' -%} sys {%- else -%} no {%- endif -%}", {"messages": [{"role": "system"}]}),
    ("{% if loop is defined %}x{% endif %}", {}),
    # macros
    ("{% macro f(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(1, c=9) }} {{ f(b=1, a=0) }}", {}),
    ("{% macro f(a) %}[{{ a }}]{% endmacro %}{{ f() }}{{ f(1) | length }}", {}),
    ("{% macro f(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, k=4) }}", {}),
    ("{% macro f(a) %}{% if a > 0 %}{{ a }}{{ f(a - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", {}),
    ("{% macro f() %}{{ caller() }}!{% endmacro %}{% call f() %}body{% endcall %}", {}),
    ("{% macro f(l) %}{% for x in l %}{{ caller(x) }};{% endfor %}{% endmacro %}{% call(v) f([1, 2]) %}<{{ v }}>{% endcall %}", {}),
    ("{% set g = 1 %}{% macro f() %}{{ g }}{% endmacro %}{% set g = 2 %}{{ f() }}", {}),
    ("{% macro f() %}{% set inner = 1 %}{{ inner }}{% endmacro %}{{ f() }}{{ inner is defined }}", {}),
    ("{% macro f(x) -%}\n  {{ x }}\n{%- endmacro %}[{{ f('a') }}]", {}),
    ("{% macro f(*a) %}{% endmacro %}", {}),
    ("{% macro f(a=1, b) %}{% endmacro %}", {}),
    ("{{ f(1) }}{% macro f(x) %}{{ x }}{% endmacro %}", {}),
    ("{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(**{'a': 3, 'b': 4}) }}", {}),
    ("{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}", {}),
    ("{% macro f(a) %}{{ a }}{% endmacro %}{{ f.name }}", {}),
    ("{% macro render(d, depth) %}{% for k, v in d.items() %}{{ '  ' * depth }}{{ k }}:{% if v is mapping %}\n{{ render(v, depth + 1) }}{% else %} {{ v }}\n{% endif %}{% endfor %}{% endmacro %}{{ render(d, 0) }}",
     {"d": {"a": 1, "b": {"c": 2, "d": {"e": "x"}}}}),
    # filter, generation, raw, comments
    ("{% filter upper %}a{{ 'b' }}{% endfilter %}", {}),
    ("{% filter replace('a', 'b') | upper %}aXa{% endfilter %}", {}),
    ("{% generation %}a{{ x }}{% endgeneration %}", {"x": 1}),
    ("{% for m in l %}{% generation %}\n{{ m }}\n{% endgeneration %}\n{% endfor %}", {"l": [1, 2]}),
    ("{% raw %}{{ x }}{% if %}{# c #}{% endraw %}", {}),
    ("a\n  {% raw %}\n {{ x }}\n  {% endraw %}\nb", {}),
    ("a {%- raw -%} {{ x }} {%- endraw -%} b", {}),
    ("{% raw %}{{ x }}", {}),
    ("a{# comment #}b", {}),
    ("a\n  {# comment #}\nb", {}),
    ("a {#- comment -#} b", {}),
    ("a{# {{ x }} {% if %} #}b", {}),
    ("a{# open", {}),
    # white space
    ("a\n{% if true %}\n  b\n{% endif %}\nc\n", {}),
    ("a\n  {% if true %}  \n  b\n  {% endif %}  \nc\n\n", {}),
    ("  {% if true %}x{% endif %}", {}),
    ("x  {% if true %}y{% endif %}", {}),
    ("a\n  {%+ if true %}\n  b\n  {%+ endif %}\nc", {}),
    ("a\n{% if true +%}\nb\n{% endif +%}\nc", {}),
    ("a \n {%- if true -%} \n b \n {%- endif -%} \n c", {}),
    ("a \n {{- 'x' -}} \n b", {}),
    ("a\n  {{ 'x' }}\n  b", {}),
    ("{{ 'x' }}\n{{ 'y' }}\n", {}),
    ("{% set x = 1 %}\n\n{{ x }}", {}),
    ("a\r\nb\rc{% if true %}\r\nd{% endif %}", {}),
    ("\n\n{% for x in [1, 2] %}\n  - {{ x }}\n{% endfor %}\n\n", {}),
    ("{%- for x in [1, 2] %}\n{{- x }}\n{%- endfor %}", {}),
    ("{% if true %}{% if true %}\n  {% set x = 1 %}\n  {{ x }}\n{% endif %}{% endif %}", {}),
    ("\t{% if true %}\tx\t{% endif %}\t\n", {}),
    ("\u00a0{% if true %}x{% endif %}", {}),
    ("a\u00a0\u2003{%- if true %}x{% endif %}", {}),
    ("text with { braces } and {x} and % }} %} #}", {}),
    ("{{ {'a': {'b': 1}}.a.b }}{{ {'a': 1} }}", {}),
    ("{{ '}}' }}{{ '%}' }}{{ \"{{\" }}", {}),
    ("{{-1}}|{{ -1 }}|{{- -1 }}", {}),
    ("", {}),
    ("\n", {}),
    ("\n\n", {}),
    ("plain", {}),
    ("{{ 1 }}{", {}),
    ("{{ 'multi\nline' }}", {}),
    # errors of syntax
    ("{% if x %}", {}),
    ("{% for x in y %}", {}),
    ("{% endif %}", {}),
    ("{% if x %}{% endfor %}", {}),
    ("{% else %}", {}),
    ("{% nope %}", {}),
    ("{% include 'x' %}", {}),
    ("{% do x %}", {}),
    ("{{ x", {}),
    ("{% if x", {}),
    ("{{ }}", {}),
    ("{% %}", {}),
    ("{{ x }", {}),
    ("{% set x %}", {}),
    ("{% set = 1 %}", {}),
    ("{% for in x %}{% endfor %}", {}),
    ("{% for x y in z %}{% endfor %}", {}),
    ("{{ x y }}", {}),
    ("{{ (1, 2 }}", {}),
    ("{{ ) }}", {}),
    ("{{ [1, 2) }}", {}),
    ("{{ f(a=1, 2) }}", {}),
    # as templates of published models have them
    ("{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ add_generation_prompt }}", {}),
    ("{%- set ns = namespace(is_first=false, is_tool=false, system_prompt='') -%}{%- for message in messages -%}{%- if message['role'] == 'system' -%}{% set ns.system_prompt = message['content'] %}{%- endif -%}{%- endfor -%}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages -%}{%- if message['role'] == 'user' -%}{%- set ns.is_tool = false -%}{{ '<|User|>' + message['content'] }}{%- endif -%}{%- if message['role'] == 'assistant' and message['content'] is not none -%}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{ '<|Assistant|>' + content + '<|end|>' }}{%- endif -%}{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{ '<|Assistant|><think>\\n' }}{% endif %}",
     {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "t</think>A"}, {"role": "user", "content": "Q2"}], "bos_token": "<s>", "add_generation_prompt": True}),
    ("{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}\n{%- for message in messages[::-1] %}\n    {%- set index = (messages|length - 1) - loop.index0 %}\n    {%- if ns.multi_step_tool and message.role == \"user\" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}\n        {%- set ns.multi_step_tool = false %}\n        {%- set ns.last_query_index = index %}\n    {%- endif %}\n{%- endfor %}\n{{- ns.last_query_index }}",
     {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "<tool_response>x</tool_response>"}]}),
    ("{% macro visible_text(content) %}{% if content is string %}{{ content }}{%- elif content is iterable and content is not mapping %}{%- for item in content %}{%- if item is mapping and item.type == 'text' %}{{ item.text }}{%- elif item is string %}{{ item }}{%- endif %}{%- endfor %}{%- else %}{{ content }}{%- endif %}{% endmacro %}{{ visible_text(a) }}|{{ visible_text(b) }}|{{ visible_text(c) }}",
     {"a": "x", "b": [{"type": "text", "text": "p"}, {"type": "image"}, "q"], "c": None}),
    ("{%- for tc in m.tool_calls %}{%- if tc.function %}{%- set tc = tc.function %}{%- endif %}{{ '\\n<tool_call>' + tc.name }}{% set _args = tc.arguments %}{% for k, v in _args.items() %}<arg_key>{{ k }}</arg_key>{{ v | tojson(ensure_ascii=False) if v is not string else v }}{% endfor %}</tool_call>{% endfor %}",
     {"m": {"tool_calls": [{"function": {"name": "f", "arguments": {"a": "x", "b": [1, "é"]}}}, {"name": "g", "arguments": {}}]}}),
    ("{%- if tools %}{{- \"# Tools\\n\" }}{%- for tool in tools %}{{- \"\\n\" }}{{- tool | tojson }}{%- endfor %}{%- endif %}", {"tools": [{"type": "function", "function": {"name": "f", "description": "é <b>"}}]}),
    ("{% if messages[0].role == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0].content.strip() + '\n\n' %}{% else %}{% set loop_messages = messages %}{% set system_message = '' %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}{{ message.role }}{% endfor %}",
     {"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]}),
]

FEATURES = [("{{ " + line + " }}", DATA) for line in EXPRESSIONS.strip().split("\n")] + STATEMENTS
