"""Grammars compiled, within limits. Blocks: for threads of their own."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any, Final

import structlog
from llguidance import LLMatcher

from outrider.errors import InvalidSamplingError, OutriderError
from outrider.reply_parsing.formats import ReasoningTags
from outrider.sampling.grammar import Grammar, GrammarKind
from services.inference.grammars.matcher import GrammarMatcher
from services.inference.grammars.token_table import TokenTable
from services.inference.grammars.trial import LIMITS, check_cost

WHITESPACE: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON as Python writes it. A model that may put whitespace anywhere can continue it for ever, and
with only one way allowed, more of the text is forced. `x-guidance` in a schema overrides this."""

_log = structlog.get_logger()
_BODY: Final = "body"
_ASCII: Final = (*b"\t\n\r", *range(0x20, 0x7F))
_ESCAPE: Final = re.compile(r"\\[uUxpPN0-9]")
"""Matches escapes for characters by number or class."""
_PROBLEMS: Final = (
    (
        "oneOf constraints",
        "choices of a oneOf may overlap; use anyOf, or coerce_one_of in x-guidance",
    ),
    ("Definition not found", "a $ref names what the schema does not have"),
    ("circular references", "a $ref that leads to itself has keywords beside it; leave these out"),
    ("disjoint", "patternProperties may overlap; make them exclude each other"),
    ("is greater than", "a lower bound in the schema is above the upper one"),
    ("intersection stack", "the schema is too complex; combine less by allOf and $ref"),
    ("unsatisfiable", "no value satisfies the schema; check its bounds and required properties"),
    ("Unsatisfiable", "no value satisfies the schema; check its bounds and required properties"),
    ("look-around", "a regular expression has look-around, which is not supported"),
    ("registry", "a $ref leads to another document; put what it names under $defs"),
    ("Unknown format", "the schema has a string format that is not supported"),
    ("deeply nested", "the grammar is nested too deep; name its inner parts"),
    ("unknown name", "the grammar uses a name that it does not define"),
    ("too large", "the grammar is too large; simplify it"),
    ("too big", "the grammar is too large; simplify it"),
    ("too complex", "the grammar is too complex; simplify it"),
    ("fuel", "the grammar is too complex; simplify it, above all repetitions with large bounds"),
    ("limit", "the grammar is too complex; simplify it, above all repetitions with large bounds"),
    ("regex", "a regular expression in the grammar is not valid"),
)
"""Parts of llguidance's messages, and our messages instead: theirs quote the grammar."""
_KEYWORDS: Final = (
    "$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$ref", "additionalItems",
    "additionalProperties", "allOf", "anyOf", "const", "contains", "contentEncoding",
    "contentMediaType", "contentSchema", "dependencies", "dependentRequired", "dependentSchemas",
    "else", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "if", "items", "maxContains",
    "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems", "minLength",
    "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern", "patternProperties",
    "prefixItems", "properties", "propertyNames", "required", "then", "type", "unevaluatedItems",
    "unevaluatedProperties", "uniqueItems",
)  # fmt: skip
"""JSON Schema's own words, which an error may name."""


MOST_ALONE_S: Final = 0.05
"""CPU time of a compilation that the model's thread does again for one reply, and lets the others
of its call wait for. Most take 4 ms."""


class CompiledGrammar:
    """A grammar over one vocabulary, for the replies of one trust group. Their matchers share a
    lexer, which learns from each of them, and is worn out for all once it came to its limits."""

    def __init__(self, table: TokenTable, text: str) -> None:
        """`text`: as `definition` has it. Raises as compile_grammar."""
        self._table = table
        self._text = text
        begin = time.thread_time()
        self._fresh = self._made()
        self._took_s = time.thread_time() - begin
        if self._fresh.is_error():
            raise _Refused(self._fresh.get_error())
        self._can_roll_back = _can_roll_back(table, self._fresh)
        self.is_worn_out = False
        """A reply found the shared lexer at its limits: new replies need the grammar anew."""

    def constraint(self) -> GrammarMatcher:
        """For one reply; takes some ten microseconds."""
        return GrammarMatcher(self._table, self, can_roll_back=self._can_roll_back)

    def sharing(self) -> LLMatcher:
        """A matcher that shares the lexer; see FreshMatchers."""
        return self._fresh.deep_copy()

    def alone(self) -> LLMatcher | None:
        """A matcher with a lexer of its own; see FreshMatchers."""
        self.is_worn_out = True
        return self._made() if self._took_s <= MOST_ALONE_S else None

    def _made(self) -> LLMatcher:
        return LLMatcher(self._table.tokenizer, self._text, log_level=0, limits=LIMITS)


class _Refused(Exception):
    """llguidance's own words, which quote the grammar."""


def compile_grammar(table: TokenTable, grammar: Grammar) -> CompiledGrammar:
    """Compile a grammar, on trial first if its cost is not known (trial.py): takes milliseconds, up
    to two seconds for schemas of thousands of properties, and releases Python's lock meanwhile.
    Raises InvalidSamplingError, whose message quotes nothing of it."""
    check_cost(grammar, json.dumps({"grammars": [_body(grammar)]}))
    text = definition(table, grammar)
    try:
        compiled = CompiledGrammar(table, text)
        compiled.constraint().allowed()
    except _Refused as refused:
        raise InvalidSamplingError(problem(grammar.kind, str(refused))) from None
    except OutriderError:
        raise
    except BaseException as panic:  # llguidance's panics are no Exceptions
        _log.error("grammar_panic", kind=grammar.kind, error=type(panic).__name__)
        raise InvalidSamplingError("the grammar cannot be compiled; simplify it") from None
    return compiled


def definition(table: TokenTable, grammar: Grammar) -> str:
    """The grammar in llguidance's form.

    Nothing is forced if the vocabulary may have no token for some of its bytes.

    With some vocabularies the text of a reply omits the space that its ids begin with. There the
    ids may begin with one before JSON, as the model is used to; before a text that may begin with
    spaces of its own they must. What the model thinks, if it may, stands in front.
    """
    body = _body(grammar)
    may_force = not table.missing_bytes or _is_written(table.missing_bytes, grammar)
    if may_force and not table.strips_space and grammar.reasoning is None:
        return json.dumps({"grammars": [body]})
    is_json = grammar.kind in (GrammarKind.JSON_SCHEMA, GrammarKind.JSON_OBJECT)
    space = ('" "? ' if is_json else '" " ') if table.strips_space else ""
    start = f"start: {space}@{_BODY}"
    if grammar.reasoning is not None:
        start = _behind_thought(
            table, grammar.reasoning, space, is_open=grammar.begins_in_reasoning
        )
    if not may_force:
        start = f'%llguidance {{"no_forcing": true}}\n{start}'
    return json.dumps({"grammars": [{"lark_grammar": start}, {"name": _BODY, **body}]})


_CONTROL: Final = re.compile(r"(<\|\w+\|>)")


def _behind_thought(table: TokenTable, tags: ReasoningTags, space: str, *, is_open: bool) -> str:
    """Text in Lark for a body behind reasoning, which is there if the prompt began it."""
    end = table.control_id(tags.end)
    if end is None:
        opening, closing = (re.escape(tag).replace("/", r"\/") for tag in tags)
        thought = rf"thought[lazy]: /{'' if is_open else opening}(.|\n)*{closing}/"
    else:
        opening = "" if is_open else " ".join(_in_lark(table, tags.begin))
        thought = rf"thought: {opening} /(.|\n)*/ <[{end}]>"
    before = "thought" if is_open else f"{space}thought?"
    return f"start: {before} BREAKS @{_BODY}\n{thought}\nBREAKS: /\\n{{0,2}}/"


def _in_lark(table: TokenTable, tag: str) -> Iterator[str]:
    """A tag as control tokens and text: gpt-oss's is a control token, a word and another one."""
    for piece in filter(None, _CONTROL.split(tag)):
        token = table.control_id(piece)
        yield json.dumps(piece) if token is None else f"<[{token}]>"


def _body(grammar: Grammar) -> dict[str, Any]:
    match grammar.kind:
        case GrammarKind.LARK:
            return {"lark_grammar": grammar.text}
        case GrammarKind.REGEX:
            # llguidance writes the expression as a Lark terminal, with what has to be escaped.
            inner = json.loads(LLMatcher.grammar_from_regex(grammar.text))["grammars"][0]
            return {"lark_grammar": inner["lark_grammar"]}
        case GrammarKind.JSON_OBJECT:
            return {"json_schema": {"type": "object", "x-guidance": WHITESPACE}}
        case GrammarKind.JSON_SCHEMA:
            schema = json.loads(grammar.text)
            own = schema.get("x-guidance")
            options = WHITESPACE | own if isinstance(own, dict) else WHITESPACE
            return {"json_schema": schema | {"x-guidance": options}}


def _is_written(missing: frozenset[int], grammar: Grammar) -> bool:
    """Whether text that the grammar can force has none of these bytes. It consists of the grammar's
    own characters and of ASCII, for JSON and formats. In expressions an escape or a range may stand
    for any other character."""
    if not missing.isdisjoint(_ASCII):
        return False
    text, has_expressions = grammar.text, grammar.kind in (GrammarKind.REGEX, GrammarKind.LARK)
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        text = json.dumps(json.loads(text), ensure_ascii=False)
        has_expressions = '"pattern' in text or '"x-guidance"' in text
    is_written = missing.isdisjoint(text.encode(errors="surrogatepass"))
    if not has_expressions:
        return is_written
    has_ranges = "[" in text or ".." in text
    return not _ESCAPE.search(text) and (text.isascii() or (is_written and not has_ranges))


def problem(kind: GrammarKind, message: str) -> str:
    """A message for the fault, which quotes nothing of the grammar."""
    if "Unimplemented keys" in message:
        named = [word for word in _KEYWORDS if f'"{word}"' in message]
        which = f": {', '.join(named)}" if named else ""
        return f"the schema has keywords that are not supported{which}; leave them out"
    known = (text for part, text in _PROBLEMS if part in message)
    fallback = {
        GrammarKind.JSON_SCHEMA: "the schema is not valid; check it against JSON Schema 2020-12",
        GrammarKind.JSON_OBJECT: "JSON objects cannot be written with this model's vocabulary",
        GrammarKind.REGEX: "the regular expression is not valid",
        GrammarKind.LARK: "the grammar is not valid; check it against llguidance's syntax",
    }
    return next(known, fallback[kind])


def _can_roll_back(table: TokenTable, fresh: LLMatcher) -> bool:
    """Whether the grammar can be rolled back. Some of Lark's extensions (stop, max_tokens) cannot:
    found out by trying any first id."""
    trial = fresh.deep_copy()
    words = -(-table.size // 32)
    bits = trial.compute_bitmask()[: words * 4]
    for at, byte in enumerate(bits):
        for bit in range(8):
            token = at * 8 + bit
            if byte >> bit & 1 and token not in table.ends:
                return trial.consume_token(token) and trial.rollback(1)
    return True
