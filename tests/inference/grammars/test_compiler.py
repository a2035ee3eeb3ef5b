"""Grammars that are none, cost too much, or say too much: refused in words that are not theirs."""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np
import pytest

from outrider.errors import InvalidSamplingError
from outrider.sampling.grammar import JSON_OBJECT, Grammar, GrammarKind, json_schema
from services.inference.grammars.compiler import compile_grammar, definition
from services.inference.grammars.token_table import MAX_TOKEN_BYTES, TokenTable
from services.inference.grammars.trial import needs_trial
from tests.inference.grammars.finite import TABLE, Pieces

SECRET = "Zanzibar"
SCHEMA, REGEX, LARK = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.LARK


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether a reply of these bytes may end there."""
    matcher = compile_grammar(BYTES, grammar).constraint()
    ids = [byte + 3 for byte in text.encode()]
    return matcher.num_valid([*ids, 2]) == len(ids) + 1


class Bytes(Pieces):
    """An id for each byte."""

    def __init__(self) -> None:
        self.words = [b"<pad>", b"<s>", b"<e>", *(bytes([byte]) for byte in range(256))]
        self.strips_space = False

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset({2})

    @property
    def usual_stop_id(self) -> int:
        return 2

    def encode_reply(self, text: str) -> list[int]:
        return [byte + 3 for byte in text.encode()]


BYTES = TokenTable(Bytes())


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (SCHEMA, '{"type": "Zanzibar"}', "not valid"),
        (SCHEMA, '{"properties": {"Zanzibar": {"if": {}, "then": {}}}}', "if, then"),
        (SCHEMA, '{"type": "string", "pattern": "(?=Zanzibar)b"}', "look-around"),
        (SCHEMA, '{"type": "string", "pattern": "(Zanzibar"}', "regular expression"),
        (SCHEMA, '{"$ref": "https://Zanzibar.example/x"}', "another document"),
        (SCHEMA, '{"$ref": "#/$defs/Zanzibar"}', "not valid|another document|does not have"),
        (
            SCHEMA,
            '{"oneOf": [{"properties": {"Zanzibar": {}}}, {"maxProperties": 3}]}',
            "oneOf may overlap",
        ),
        (SCHEMA, '{"type": "string", "minLength": 9, "maxLength": 4}', "lower bound|no value"),
        (SCHEMA, '{"type": "string", "format": "Zanzibar"}', "format"),
        (
            SCHEMA,
            '{"properties": {"Zanzibar": {"type": "integer", "minimum": 5, "maximum": 4}},'
            ' "type": "object", "required": ["Zanzibar"]}',
            "no value",
        ),
        (REGEX, "(Zanzibar", "regular expression"),
        (REGEX, "(?!Zanzibar)a", "look-around"),
        (LARK, 'start: "a" Zanzibar', "does not define"),
        (LARK, "Zanzibar Zanzibar", "not valid"),
        (LARK, 'start: Zanzibar\nZanzibar: "a"', "not valid|not define"),
        (LARK, "start: " + "(" * 200 + '"Zanzibar"' + ")" * 200, "deep"),
    ],
)
def test_errors_say_what_is_wrong_and_nothing_of_the_text(
    kind: GrammarKind, text: str, says: str
) -> None:
    with pytest.raises(InvalidSamplingError, match=says) as caught:
        compile_grammar(BYTES, Grammar(kind, text))
    assert SECRET not in caught.value.message
    assert caught.value.__cause__ is None


COSTLY = {
    "expressions that all match": (
        LARK,
        "start: A\nA: " + " & ".join(f"/(.|\\n)*a{n}(.|\\n){{5,50}}/" for n in range(30)),
    ),
    "patterns that all match": (
        SCHEMA,
        json.dumps({"type": "string", "allOf": [{"pattern": f"a{n}[ab]+"} for n in range(40)]}),
    ),
    "patterns of properties": (
        SCHEMA,
        json.dumps({"type": "object", "patternProperties": {f"^a{n}$": {} for n in range(2500)}}),
    ),
    "a long forced text": (REGEX, "a{1000000}"),
    "forced texts in forced texts": (REGEX, "(((a{99}){99}){99}){99}"),
    "many great classes": (REGEX, r"\w" * 16_000),
}


@pytest.mark.skipif(sys.platform != "linux", reason="its limits are those of Linux")
@pytest.mark.parametrize("name", COSTLY)
def test_what_takes_too_much_to_compile_is_refused_by_another_process(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(InvalidSamplingError, match="to compile"):
        compile_grammar(BYTES, Grammar(*COSTLY[name]))
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_maxrss - before.ru_maxrss < 64 << 10  # KiB


@pytest.mark.parametrize(
    ("kind", "text", "is_tried"),
    [
        (SCHEMA, '{"properties": {"a": {"$ref": "#/$defs/b", "title": "c"}}}', False),
        (SCHEMA, '{"properties": {"a": {"pattern": "^[a-z]{1,64}$", "maxLength": 9999}}}', False),
        (SCHEMA, '{"\\u0061llOf": [{}]}', True),
        (SCHEMA, '{"items": {"$ref": "#/$defs/b", "pattern": "a"}}', True),
        (REGEX, r"\d{4}-\d{2}", False),
        (REGEX, r"a{ 1 ,99999}", True),
        (LARK, 'start: "a"', False),
        (LARK, "start: A\nA: /a/ & /b/", True),
    ],
)
def test_only_grammars_whose_cost_nobody_knows_are_tried(
    kind: GrammarKind, text: str, is_tried: bool
) -> None:
    assert needs_trial(Grammar(kind, text)) == is_tried


HOSTILE = {
    "counts in counts": (REGEX, "((a{1,1000}b?){1,1000}c?){1,1000}"),
    "a wide window": (REGEX, "[ab]*a[ab]{60}c"),
    "many alternatives": (REGEX, "|".join(f"(a|b){{{n}}}c" for n in range(900))),
    "classes": (REGEX, r"(\p{L}{1,200}\p{N}{1,200}){1,200}"),
    "nested groups": (REGEX, "(" * 240 + "a" + ")*" * 240),
    "deeper groups": (REGEX, "(" * 20_000 + "a" + ")" * 20_000),
    "long items": (SCHEMA, '{"type": "array", "minItems": 1000000, "items": {"type": "string"}}'),
    "long texts": (SCHEMA, '{"type": "string", "minLength": 1000000, "maxLength": 2000000}'),
    "arrays in arrays": (
        SCHEMA,
        '{"type":"array","maxItems":999,"items":' * 9 + "{}" + "}" * 9,
    ),
    "many properties": (
        SCHEMA,
        json.dumps({"type": "object", "properties": {f"p{n}": {} for n in range(4000)}}),
    ),
    "many choices": (
        SCHEMA,
        json.dumps({"enum": [f"value number {n} of many" for n in range(2000)]}),
    ),
    "products of choices": (
        SCHEMA,
        json.dumps({"allOf": [{"anyOf": [{"minimum": n}, {"maximum": -n}]} for n in range(24)]}),
    ),
    "a chain of references": (
        SCHEMA,
        json.dumps(
            {"$ref": "#/$defs/d0"}
            | {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(1500)}}
            | {"properties": {}}
        ).replace('"#/$defs/d1500"', '"#/$defs/d0"'),
    ),
    "a chain of rules": (
        LARK,
        "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(997)) + 'r997: "a"',
    ),
    "parts that may be empty": (REGEX, r"\w*" * 500),
    "itself": (SCHEMA, '{"allOf": [{"$ref": "#"}]}'),
    "left recursion": (LARK, 'start: start start | start | "a" | ""'),
    "empty loops": (LARK, 'start: (("a"?)*)* (("b"?)*)*'),
    "an ambiguous grammar": (LARK, 'start: e\ne: e e | e e e | "a" | "ab" | "b"'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_cost_little(name: str) -> None:
    """Refused, or followed for some tokens, in a time that a busy machine may stretch."""
    kind, text = HOSTILE[name]
    begin = time.thread_time()
    try:
        grammar = Grammar(kind, text)
        matcher = compile_grammar(BYTES, grammar).constraint()
        rng = np.random.default_rng(1)
        for _ in range(60):
            ids = np.flatnonzero(matcher.allowed())
            token = int(rng.choice(ids))
            if token == 2:
                break
            matcher.advance(token)
            matcher.prepare(matcher.forced(4))
    except InvalidSamplingError as error:
        assert text[:20] not in error.message
    assert time.thread_time() - begin < 20.0


def test_json_has_no_whitespace_of_the_models_choice() -> None:
    schema = json_schema({"type": "object", "properties": {"a": {}, "b": {}}})
    assert accepts(schema, '{"a": 1, "b": [1, {"c": null}]}')
    for text in (
        '{"a":1}',
        '{ "a": 1}',
        '{"a": 1 }',
        '{"a": 1,\n"b": 2}',
        ' {"a": 1}',
        '{"a": 1} ',
    ):
        assert not accepts(schema, text)
    assert accepts(JSON_OBJECT, '{"any": "thing"}') and not accepts(JSON_OBJECT, "[1]")


def test_a_schema_may_ask_for_other_whitespace() -> None:
    own = {"x-guidance": {"whitespace_flexible": True, "key_separator": ":", "item_separator": ","}}
    schema = json_schema({"type": "object"} | own)
    assert accepts(schema, '{\n  "a" : 1 ,"b":2}')


def test_a_regular_expression_is_for_the_whole_reply() -> None:
    grammar = Grammar(REGEX, 'a/b|"[0-9]{3}"')
    assert accepts(grammar, "a/b") and accepts(grammar, '"123"')
    assert not accepts(grammar, "xa/b") and not accepts(grammar, '"123')


def test_an_empty_reply_may_be_all() -> None:
    assert accepts(Grammar(REGEX, "(ab)?"), "")


def test_vocabularies_that_no_grammar_can_be_followed_with() -> None:
    class Endless(Pieces):
        @property
        def stop_ids(self) -> frozenset[int]:
            return frozenset()

        @property
        def usual_stop_id(self) -> None:
            return None

    class Long(Pieces):
        def token_bytes(self, token_id: int) -> bytes:
            return b"x" * (MAX_TOKEN_BYTES + 1) if token_id == 9 else super().token_bytes(token_id)

    for words, says in ((Endless(), "ends a reply"), (Long(), "bytes")):
        table = TokenTable(words)
        with pytest.raises(InvalidSamplingError, match=says):
            compile_grammar(table, JSON_OBJECT)


def test_ids_that_end_replies_are_no_text_whatever_they_say() -> None:
    class Named(Bytes):
        """The id that ends a reply has a letter for its name."""

        def __init__(self) -> None:
            super().__init__()
            self.words[2] = b"a"

        def is_special(self, token_id: int) -> bool:
            return token_id < 2

    matcher = compile_grammar(TokenTable(Named()), Grammar(REGEX, "a{2}")).constraint()
    for _ in range(2):
        assert np.flatnonzero(matcher.allowed()).tolist() == [3 + ord("a")]
        matcher.advance(3 + ord("a"))
    assert np.flatnonzero(matcher.allowed()).tolist() == [2]


def test_control_tokens_are_no_text() -> None:
    matcher = compile_grammar(TABLE, Grammar(REGEX, "[^q]*")).constraint()
    assert not matcher.allowed()[:2].any() and matcher.allowed()[4]


class Sparse(Bytes):
    """Like many byte-level vocabularies, it never saw some bytes in training."""

    def __init__(self) -> None:
        super().__init__()
        for byte in (0x04, 0xF1):
            self.words[3 + byte] = b"ab%d" % byte

    def encode_reply(self, text: str) -> list[int]:
        return [i for i in super().encode_reply(text) if len(self.words[i]) == 1]


SPARSE = TokenTable(Sparse())
RARE = "\U00050000"  # begins with 0xF1


@pytest.mark.parametrize(
    ("kind", "text", "forces"),
    [
        (SCHEMA, '{"enum": ["name"]}', True),
        (SCHEMA, '{"enum": ["gr\u00f6\u00dfe"]}', True),
        (SCHEMA, f'{{"enum": ["name{RARE}"]}}', False),
        (SCHEMA, '{"enum": ["name\\ud900\\udc00"]}', False),
        (SCHEMA, '{"properties": {"name": {"pattern": "a"}}, "required": ["name"]}', True),
        (SCHEMA, '{"properties": {"name": {"pattern": "\\\\x{50000}"}}}', False),
        (REGEX, "names?", True),
        (REGEX, "ä names?", True),
        (REGEX, f"(a|{RARE}) names?", False),
        (REGEX, r"(a|\x{50000}) names?", False),
        (REGEX, "(a|[\U00050000-\U00050001]) names?", False),
        (REGEX, "ä[à-ü]", False),
        (LARK, 'start: "name" "s"?', True),
    ],
)
def test_what_may_have_bytes_that_the_vocabulary_lacks_is_not_forced(
    kind: GrammarKind, text: str, forces: bool
) -> None:
    assert SPARSE.missing_bytes == {0x04, 0xF1}
    written = definition(SPARSE, Grammar(kind, text))
    assert ("no_forcing" not in written) is forces
    matcher = compile_grammar(SPARSE, Grammar(kind, text)).constraint()
    assert matcher.allowed().any() and matcher._looks_ahead


def test_a_text_that_cannot_be_written_ends_the_reply() -> None:
    """Were it forced all the same."""
    table = TokenTable(Sparse())
    table.missing_bytes = frozenset()
    matcher = compile_grammar(table, Grammar(REGEX, f"(a|b)c{RARE}")).constraint()
    matcher.prepare([3 + ord("a"), 3 + ord("c")])
    matcher.advance(3 + ord("a"))
    with pytest.raises(InvalidSamplingError, match="vocabulary"):
        matcher.allowed()
