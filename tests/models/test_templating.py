"""Templates of hostile model files: bounded in steps, sizes and time; honest ones say the same."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import tracemalloc
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.errors import ConfigError, InvalidRequestError
from outrider.models.chat import Message
from outrider.models.chat_template import ChatTemplate
from outrider.models.template_budget import MAX_JOB_S, MAX_STEPS, BudgetSpentError
from outrider.models.templating import BROKEN, MAX_SOURCE_CHARS, MAX_TOKENS, BoundedEnvironment
from tools.fuzz_templates import Composer, smallest, source_of

DOUBLING = (
    "{%% set ns = namespace(x=%s) %%}"
    "{%% for i in range(99) %%}{%% set ns.x = %s %%}{%% endfor %%}%s"
)
HOSTILE = {
    "endless loop": (
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
    ),
    "endless filter": (
        "{% for i in range(999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}"
    ),
    "endless output": "{% for i in range(99999) %}{{ 'a' * 100000 }}{% endfor %}",
    "branching macros": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}"
    ),
    "bottomless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "bottomless loop": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "repeated text": "{{ 'a' * 10 ** 10 }}",
    "repeated list": "{{ ([1] * 10 ** 6) * 10 ** 6 }}",
    "doubled text": DOUBLING % ("'a'", "ns.x ~ ns.x", ""),
    "doubled sum": DOUBLING % ("'a'", "ns.x + ns.x", ""),
    "nested lists": DOUBLING % ("['a']", "[ns.x, ns.x]", "{{ ns.x }}"),
    "nested tuples": DOUBLING % ("['a']", "(ns.x, ns.x)", "{{ ns.x == ns.x }}"),
    "nested dicts": DOUBLING % ("{}", "{'a': ns.x, 'b': ns.x}", "{{ ns.x|tojson }}"),
    "nested namespaces": DOUBLING % ("1", "namespace(a=ns.x, b=ns.x)", "{{ ns.x }}"),
    "squares": DOUBLING % ("9", "ns.x * ns.x", ""),
    "power": "{{ 9 ** (10 ** 9) }}",
    "wide format": "{{ '%1000000000d' % 1 }}",
    "wide format, said elsewhere": "{{ '%*d' % (10 ** 9, 1) }}",
    "wide format filter": "{{ '%1000000000d'|format(1) }}",
    "wide str.format": "{{ '{:1000000000}'.format(1) }}",
    "nested str.format": "{{ '{:{}}'.format(1, 10 ** 6) }}",
    "wide filter": "{{ 'a'|center(10 ** 9) }}",
    "deep indent": "{{ messages|tojson(indent=10 ** 9) }}",
    "batch": "{{ [1]|batch(10 ** 9, 'x')|list }}",
    "join of one text": "{{ (['a' * 1000000] * 100000)|join }}",
    "method join of one text": "{{ ''.join(['a' * 1000000] * 100000) }}",
    "join of what comes one by one": "{{ (['a' * 1000000] * 999)|map('upper')|join }}",
    "replace with much": "{{ ('a' * 1000000)|replace('', 'b' * 1000000) }}",
    "method replace with much": "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
    "tabs": "{{ ('\t' * 100000).expandtabs(100000) }}",
    "range": "{{ range(10 ** 9)|list }}",
    "a list for each character": "{% set a = ('a' * 8000000) | batch(1) | list %}",
    "words": "{% set a = ('ab ' * 900000) | title %}",
    "pieces": "{% set a = ('a ' * 2000000).split() %}",
    "empty slices": "{% set a = [1] | slice(8000000) | list %}",
    "slices of a list": (
        "{% set b = [0] * 100000 %}"
        "{% for i in range(999) %}{% set a = b[1:] %}{% endfor %}{{ b[1:][1:][1:][1:][1:][1:] }}"
    ),
    "slices of a text": (
        "{% set ns = namespace(x='a' * 8000000, all=[]) %}"
        "{% for i in range(9999) %}{% set ns.all = [ns.all, ns.x[1:]] %}{% endfor %}"
    ),
    "many lists": (
        "{% set ns = namespace(all=0) %}"
        "{% for i in range(999) %}{% set ns.all = [0] * 2000000 %}{% endfor %}"
    ),
    "deep JSON with much space": (
        "{% set ns = namespace(x=[]) %}{% for i in range(500) %}{% set ns.x = [ns.x] %}{% endfor %}"
        "{{ ([ns.x] * 5000)|tojson(indent=16) }}"
    ),
    "endless loop in a generation": (
        "{% generation %}{% for i in range(9999) %}{% for j in range(9999) %}"
        "{% endfor %}{% endfor %}{% endgeneration %}"
    ),
    "endless loop of generations": (
        "{% for i in range(9999) %}{% for j in range(9999) %}"
        "{% generation %}{% endgeneration %}{% endfor %}{% endfor %}"
    ),
    "doubled text in a generation": (
        "{% generation %}" + DOUBLING % ("'a'", "ns.x ~ ns.x", "") + "{% endgeneration %}"
    ),
    "a joined block": (
        "{% set a = 'a' * 8000000 %}"
        "{% set b %}{% for i in range(999) %}{{ a }}{% endfor %}{% endset %}"
    ),
    "a format with its text often": "{{ ('{0}' * 1000).format('a' * 8000000) }}",
    "a test that is a format": "{{ '%9999999999d' is odd }}",
    "a rounding that repeats": "{{ ('a' * 99)|round(9, 'ceil') }}",
    "a rounding that is a power": "{{ 1|round(8000000, 'ceil') }}",
    "a number of hexadecimal digits": "{{ ('f' * 8000000)|int(base=16) // 3 }}",
    "a number of bytes": "{{ (1).from_bytes([255] * 100000, 'big') }}",
    "much compared with much": "{{ ['a' * 999999] * 99999 == ['a' * 999999] * 99999 }}",
    "comments stripped one by one": "{{ (('<!---->' * 1000000)|safe).striptags() }}",
    "an encoding": "{{ ('\u00fc' * 1000000).encode('punycode') }}",
    "sets": "{% set a = range(9) %}{{ ({}.keys() - a)|list }}",
    "values of dictionaries": DOUBLING
    % ("{'a': 1}", "{'a': ns.x.items(), 'b': ns.x.items()}", "{{ ns.x.items() }}"),
    "a search from behind": "{{ ('a' * 8000000).rfind('a' * 4000000 ~ 'b' ~ 'a' * 99999) }}",
    "reasons without end": "{{ raise_exception(['a' * 8000000] * 1000) }}",
    "an assertion of Jinja's": "{{ 'aaaaaaaaaa'|truncate(1) }}",
    "an error of Jinja's": "{{ cycler() }}",
    "division": "{{ 1 / 0 }}",
    "nothing": "{{ a.b.c }}",
    "forbidden": "{{ ''.__class__.__mro__ }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_template_refuses_and_takes_few_steps(source: str) -> None:
    template = ChatTemplate(source, ["<s>"], {})
    with pytest.raises(InvalidRequestError, match="chat template fails on"):
        template.segments([Message("user", "hello")])


MANY = (
    "'a' * 8000000",
    "'ab ' * 900000",
    "[0] * 100000",
    "'\U0001f600' * 130000",
    "[0] * 2000000",
    "range(8000000)",
    "range(100000)",
    "[[1] * 999] * 99",
)
STEPS = (
    *("list", "batch(1)", "batch(2, 'x')", "slice(3)", "slice(400000)", "map('string')", "sort"),
    *("map('upper')", "unique", "reverse", "select", "reject('none')", "groupby(0)", "tojson"),
    *("string", "upper", "join(',')", "replace('a', 'aa')", "trim", "length", "first", "last"),
    *("indent(9)", "center(99)", "dictsort", "items", "map('list')", "map('batch', 1)", "title"),
)


@settings(max_examples=15)
@example("[0] * 2000000", ["trim", "trim", "sort", "batch(2, 'x')", "list"])
@example("[0] * 100000", ["sort", "batch(2, 'x')", "map('batch', 1)", "map('list')", "list"])
@example("('a\\n' * 60000).splitlines()", ["batch(1)", "list", "map('list')", "sort"])
@given(st.sampled_from(MANY), st.lists(st.sampled_from(STEPS), min_size=1, max_size=6))
def test_whatever_filters_are_chained_little_memory_is_taken(much: str, steps: list[str]) -> None:
    source = "{% set a = (" + much + ")" + "".join(f" | {step}" for step in steps) + " %}{{ a }}"
    bounded = BoundedEnvironment(lambda: 0.0)
    template = bounded.compiled(source)
    tracemalloc.start()
    try:
        with contextlib.suppress(*BROKEN):
            bounded.rendered(template, {})
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_control_tokens_without_end_are_refused() -> None:
    template = ChatTemplate("{% for i in range(9999) %}{{ '<s>' * 9 }}{% endfor %}", ["<s>"], {})
    with pytest.raises(InvalidRequestError, match="control tokens"):
        template.segments([Message("user", "hello")])


def test_all_renderings_of_a_chat_share_their_time() -> None:
    now = itertools.count()
    template = ChatTemplate("a", ["<s>"], {}, lambda: next(now) * 0.01)
    template.segments([Message("user", "hello")])
    begun = next(now)
    bounded = template._environment
    with bounded.job(), pytest.raises(BudgetSpentError, match="s of computing"):
        for _ in range(999):
            bounded.rendered(bounded.compiled("{% for i in range(99) %}{% endfor %}"), {})
    assert 0 < (next(now) - begun) * 0.01 < 2 * MAX_JOB_S


def test_two_megabytes_with_a_wide_character_have_room() -> None:
    bounded = BoundedEnvironment(lambda: 0.0)
    messages = [{"role": "user", "content": "a b\n" * 500_000 + "\U0001f600"}]
    template = bounded.compiled(
        "{% for m in messages %}{{ '<' ~ m.content | trim ~ '>' }}{% endfor %}"
        "{{ messages | tojson | length }}"
    )
    said, _ = bounded.rendered(template, {"messages": messages})
    assert said.endswith(str(len(json.dumps(messages, ensure_ascii=False))))


def test_json_may_be_written_with_arguments_by_place() -> None:
    bounded = BoundedEnvironment(lambda: 0.0)
    said, _ = bounded.rendered(bounded.compiled("{{ ['\u00e9'] | tojson(true, 2) }}"), {})
    assert said == json.dumps(["\u00e9"], indent=2)


def test_a_rendering_that_failed_leaves_no_memory_taken() -> None:
    bounded = BoundedEnvironment(lambda: 0.0)
    template = bounded.compiled("{% set a = ('\U0001f600' * 99999) | list %}{{ a.b.c }}")
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError) as caught:
            bounded.rendered(template, {})
        assert tracemalloc.get_traced_memory()[1] > 8 << 20
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
        assert str(caught.value)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(3))
def test_templates_composed_at_random_stay_within_their_memory(seed: int) -> None:
    """A short run of `python -m tools.fuzz_templates`, without its clock."""
    composer, bounded = Composer(random.Random(seed)), BoundedEnvironment(lambda: 0.0)
    messages = [{"role": "user", "content": "a, b \u00e9\n" * 99}] * 3
    for _ in range(8):
        source = source_of(composer.template())
        tracemalloc.start()
        try:
            with contextlib.suppress(*BROKEN, SyntaxError):
                template = bounded.compiled(source)
                bounded.rendered(template, {"messages": messages, "bos_token": "<s>"})
            assert tracemalloc.get_traced_memory()[1] < 64 << 20, source
        finally:
            tracemalloc.stop()


def test_the_fuzzer_finds_a_smallest_form() -> None:
    composer = Composer(random.Random(3))
    template = (composer.template(), ("{{ ", ("'b'", " ~ ", "'c'"), " }}"))
    found = smallest(template, lambda source: "'b'" in source)
    assert found in ("'b'", "{{ 'b' }}", "{{ 'b'", "'b' }}")


@pytest.mark.parametrize("one", ["{{a}}", "{% set a = b, b, b %}", "{% for a in b %}{% endfor %}"])
def test_compiling_a_template_takes_little_memory(one: str) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(ConfigError):
            ChatTemplate(one * (MAX_SOURCE_CHARS // len(one)), ["<s>"], {})
        with contextlib.suppress(ConfigError):
            ChatTemplate(one * (MAX_TOKENS // len(one.split())), ["<s>"], {})
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_numbers_are_as_long_as_their_digits() -> None:
    """Schemas of libraries bound integers by 2^53 - 1."""
    bounded = {"type": "integer", "minimum": -(2**53 - 1), "maximum": 2**53 - 1}
    schema = {"type": "object", "properties": {"n": bounded}}
    tool = json.dumps({"type": "function", "function": {"name": "f", "parameters": schema}})
    template = ChatTemplate("{{ tools | tojson }}{{ messages }}", ["<s>"], {})
    (segment,) = template.segments([Message("user", "hello")], tools=[tool])
    assert str(2**53 - 1) in segment.text


@pytest.mark.parametrize(
    "source",
    [
        "{{" + "(" * 9999 + "1" + ")" * 9999 + "}}",
        "a" * (MAX_SOURCE_CHARS + 1),
        "{% if %}",
        "{{ [[]]|sum(start=[0]) }}",
    ],
    ids=["deep", "long", "broken", "sum"],
)
def test_a_template_that_cannot_be_read_is_no_template(source: str) -> None:
    with pytest.raises(ConfigError, match="template is broken"):
        ChatTemplate(source, ["<s>"], {})


def test_time_ends_what_steps_do_not() -> None:
    now = itertools.count(step=0.5)
    template = ChatTemplate(
        "{% for i in range(9999) %}{% endfor %}", ["<s>"], {}, lambda: float(next(now))
    )
    with pytest.raises(InvalidRequestError, match="s of computing"):
        template.segments([Message("user", "hello")])


HONEST = """
{%- set ns = namespace(system='', count=0) -%}
{%- for m in messages if m.role == 'system' -%}{%- set ns.system = ns.system ~ m['content']|trim -%}
{%- endfor -%}
{%- macro turn(m, last) -%}
<{{ m.role|upper }}>{{ m.content.strip().replace('a', 'bb') }}{{ '' if last else ', ' }}
{%- endmacro -%}
{%- for m in messages if m.role != 'system' -%}
  {%- if m.role not in ['user', 'assistant'] %}{{ raise_exception('who?') }}{% endif -%}
  {%- set ns.count = ns.count + 1 -%}
  {%- if loop.index0 > 9 %}{% break %}{% endif -%}
  {{ turn(m, loop.last) }}{{ '%s/%d' % (loop.length, ns.count) }}{{ (m.role, [1, {'a': 2}]) }}
  {{- m|tojson }}{{ m.content.split('\n')|join('|') }}{{ '{:>4}'.format(loop.revindex) }}
{%- else %}nobody{% endfor -%}
{{ messages|map(attribute='role')|list }}
{{- messages|selectattr('role', 'equalto', 'user')|list|length }}
{{- messages[0].role }}{{ messages|length * 2 + 1 }}{{ [1, 2] + [3] }}{{ 'a' * 3 }}{{ ns.system }}
"""
TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=40)}
    ),
    min_size=1,
    max_size=12,
)


@given(TURNS)
def test_an_honest_template_says_what_it_says_without_bounds(turns: list[dict[str, Any]]) -> None:
    plain = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    # Jinja's own filter sorts keys and writes for HTML; transformers has this one in its place.
    plain.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    bounded = BoundedEnvironment(lambda: 0.0)
    said, _ = bounded.rendered(bounded.compiled(HONEST), {"messages": turns})
    assert said == plain.from_string(HONEST).render(messages=turns)


class Marked(Extension):
    """The block as `transformers` has it (AssistantTracker), without what it tracks."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_marked")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _marked(self, caller: Macro) -> str:
        return caller()


GENERATIONS = """
{%- set said = 'nothing' -%}
{%- set ns = namespace(count=0) -%}
{%- for m in messages %}
  <{{ m.role }}>
  {% if m.role == 'assistant' %}
    {% generation %}
    {%- set said = m.content -%}
    {%- set ns.count = ns.count + 1 %}
    {% for line in said.split(' ') if line -%}
      {{ loop.index }}/{{ loop.length }} {{ line }}
    {% endfor %}
    {{ loop.index }} end
    {%- endgeneration %}
  {% else -%}
    {{ m.content }}
  {%- generation -%}  {{ said }} {%- endgeneration -%}
  {%- endif %}
</{{ said }}>
{% endfor %}
{{- ns.count }}
"""


@given(TURNS)
def test_a_generation_block_is_what_is_in_it(turns: list[dict[str, Any]]) -> None:
    plain = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Marked]
    )
    bounded = BoundedEnvironment(lambda: 0.0)
    said, _ = bounded.rendered(bounded.compiled(GENERATIONS), {"messages": turns})
    assert said == plain.from_string(GENERATIONS).render(messages=turns)


@pytest.mark.parametrize("source", ["{% generation %}", "{% endgeneration %}"])
def test_a_generation_block_has_two_ends(source: str) -> None:
    with pytest.raises(ConfigError, match="template is broken"):
        ChatTemplate(source, ["<s>"], {})


def test_the_steps_of_an_honest_template_grow_with_its_messages() -> None:
    bounded = BoundedEnvironment(lambda: 0.0)
    template = bounded.compiled(HONEST.replace("{% break %}", ""))
    steps = [
        bounded.rendered(template, {"messages": [{"role": "user", "content": "x"}] * count})[1]
        for count in (128, 256, 512)
    ]
    assert steps[2] - steps[1] == pytest.approx(2 * (steps[1] - steps[0]), rel=0.01)
    assert steps[2] < MAX_STEPS / 10
