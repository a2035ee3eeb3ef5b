"""llama.cpp's grammars as Lark's: which replies they have."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InvalidSamplingError
from outrider.sampling.gbnf import MAX_DEPTH, lark_of
from outrider.sampling.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind
from services.inference.grammars.compiler import compile_grammar
from tests.inference.grammars.test_compiler import BYTES, accepts

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws # é
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


def grammar(text: str) -> Grammar:
    return Grammar(GrammarKind.LARK, lark_of(text))


@pytest.mark.parametrize(
    ("text", "has", "has_not"),
    [
        ('root ::= "yes" | "no"', ["yes", "no"], ["", "yesno", "y"]),
        ('root ::= [a-z]+ "x"', ["ax", "xx"], ["x", "ab"]),
        ('root ::= "abc" | [a-z]', ["abc", "a"], ["ab"]),
        ('root ::= a-1? b_2{2} "!"+\na-1 ::= "é"\nb_2 ::= [^a\\-\\]]', ["é$b!", "bb!!"], ["a-!"]),
        ('root ::= "\\x41\\u00e9\\U0001F600\\n\\"\\\\"', ['A\u00e9\U0001f600\n"\\'], ["A"]),
        ("root ::= .{2,3}", ["é\n", "abc"], ["a", "abcd"]),
        ("root ::= [-a] [a-] [+--]", ["--,", "aa-"], ["b--"]),
        ('root ::= ("a" | ("b" "c")*) # said\n', ["a", "", "bcbc"], ["b"]),
        ('root ::= x x\nx ::= "a" |\n  "b" |', ["", "a", "ab"], ["aba"]),
        (
            'root ::= "(" root? ")" [0-9]* "0"',
            ["()0", "(()10)20"],
            ["()", "(()1)2"],
        ),
        (
            JSON,
            ["{}", '{"a": 1}', '{"a":[1,-2.5e3,{"b":"\\u00e9"}],\n  "c": null}'],
            ["[1]", '{"a": }', '{"a": 01}'],
        ),
    ],
)
def test_a_grammar_has_the_replies_that_it_has_in_llama_cpp(
    text: str, has: list[str], has_not: list[str]
) -> None:
    found = grammar(text)
    assert [it for it in has if not accepts(found, it)] == []
    assert [it for it in has_not if accepts(found, it)] == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no rule 'root'"),
        ('start ::= "a"', "no rule 'root'"),
        ("root ::= sesame", "does not define"),
        ('root ::= "sesame', "line 1"),
        ('root ::= "a"\n\n  | ("b"', "line 3"),
        ("root ::= [sesame", "line 1"),
        ("root ::= <sesame>", "line 1"),
        ('root ::= "a" )', "line 1"),
        ('root = "a"', "line 1"),
        ("root ::= *", "line 1"),
        (r'root ::= "\ud800"', "no character"),
        (r'root ::= "\U00110000"', "no character"),
        ("root ::= " + "(" * (MAX_DEPTH + 2) + '"a"' + ")" * (MAX_DEPTH + 2), "too deep"),
        ('root ::= "a"\n' + "".join(f'r{it} ::= "a"\n' for it in range(1000)), "1000 rules"),
    ],
)
def test_what_is_no_grammar_is_refused_and_not_repeated(text: str, why: str) -> None:
    with pytest.raises(InvalidSamplingError, match=why) as caught:
        lark_of(text)
    assert "sesame" not in caught.value.message


LETTERS = st.sampled_from(['"a"', '"b"', '"ab"', "[ab]", "[^b]", '""'])
EXPRESSIONS = st.recursive(
    LETTERS,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(" ".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda it: f"({' | '.join(it)})")
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,2}"])).map(
            lambda it: f"({it[0]}){it[1]}"
        )
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.lists(st.text("abc", max_size=5), max_size=5))
def test_without_recursion_a_grammar_is_a_regular_expression(text: str, replies: list[str]) -> None:
    expression = re.compile(re.sub(r'[" ]', "", text).replace("[^b]", "[^b]"))
    found = grammar(f"root ::= {text}")
    for reply in replies:
        assert accepts(found, reply) == bool(expression.fullmatch(reply))


def test_hostile_grammars_cost_little() -> None:
    hostile = (
        "root ::= " + "(" * 60_000,
        "root ::= " + '"a" ' * 16_000,
        "root ::= " + "a" * 60_000,
        "root ::= " + " | ".join(['"a"'] * 10_000),
        "".join(f"r{it} ::= r{it + 1}\n" for it in range(900)) + 'r900 ::= "a"\nroot ::= r0',
        'root ::= root root | root | "a" | ""',
    )
    begin = time.thread_time()
    for text in hostile:
        try:
            compile_grammar(BYTES, grammar(text))
        except InvalidSamplingError as error:
            assert len(error.message) < 200
    assert time.thread_time() - begin < 20


def test_a_text_that_is_too_long_is_not_read() -> None:
    """To read two megabytes takes a second and more, on the event loop of an edge."""
    for num_chars, why in ((MAX_GRAMMAR_BYTES, "line 1 .* is not valid"), (2 << 20, "more than")):
        with pytest.raises(InvalidSamplingError, match=why):
            lark_of("?" * num_chars)
