"""The schemas that zod and pydantic make of their types compile, and what they allow is what the
libraries accept: replies are drawn at random from the grammar and read by the library.

zod comes from npm, once, into the user's cache.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import json
import os
import random
import shutil
import subprocess
import tarfile
import tempfile
import uuid
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import pydantic
import pytest
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict

from outrider.errors import InvalidSamplingError
from outrider.sampling.grammar import Grammar, json_schema
from services.inference.grammars.compiler import compile_grammar
from tests.inference.grammars.test_compiler import BYTES

ZOD: Final = "4.6.7"
_SCRIPT: Final = Path(__file__).with_name("zod_types.mjs")
_END: Final = 2
"""The id that ends a reply."""
_MOST_STEPS: Final = 400
_NUM_REPLIES: Final = 6
FAR: Final = {"includes", "startsWith", "endsWith"}
"""Types of whose texts few are found at random."""
FREE: Final = {"url", "jwt"}
"""Types that zod checks beyond their schemas."""


def drawn(grammar: Grammar, seed: int) -> str | None:
    """A reply that the grammar allows, drawn at random; None if it became too long."""
    choose = random.Random(seed)
    matcher = compile_grammar(BYTES, grammar).constraint()
    written = bytearray()
    for _ in range(_MOST_STEPS):
        ids = np.flatnonzero(matcher.allowed()).tolist()
        ends = [it for it in ids if it == _END or it - 3 in b'"]}']
        token = choose.choice(ends if ends and choose.random() < 0.4 else ids)
        if token == _END:
            return written.decode()
        matcher.advance(token)
        matcher.prepare([])
        written.append(token - 3)
    return None


def replies(grammar: Grammar) -> list[str]:
    found = [drawn(grammar, seed) for seed in range(_NUM_REPLIES)]
    return [it for it in found if it is not None]


# zod.


@cache
def zod_folder() -> Path:
    """A folder with zod among its modules; skips the test, saying why, where it cannot be had."""
    if shutil.which("node") is None or (npm := shutil.which("npm")) is None:
        pytest.skip("zod runs in Node: no node and npm here")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "outrider-tests" / f"zod-{ZOD}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            command = [npm, "pack", f"zod@{ZOD}", "--pack-destination", scratch]
            packed = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if packed.returncode:
                pytest.skip(f"npm cannot fetch zod: {packed.stderr.strip()[-300:]}")
            (archive,) = Path(scratch).glob("*.tgz")
            with tarfile.open(archive) as members:
                members.extractall(Path(scratch) / "made" / "node_modules", filter="data")
            made = Path(scratch) / "made"
            (made / "node_modules" / "package").rename(made / "node_modules" / "zod")
            made.rename(folder)
    shutil.copy(_SCRIPT, folder)
    return folder


def zod(*arguments: str, stdin: str = "") -> Any:
    command = ["node", _SCRIPT.name, *arguments]
    done = subprocess.run(
        command, cwd=zod_folder(), input=stdin, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_replies_by_zods_schemas_are_what_zod_accepts() -> None:
    drawn_replies: list[tuple[str, str]] = []
    not_strict = dict[str, str]()
    for name, schema in zod().items():
        grammar = json_schema(schema)
        try:
            assert json_schema(schema, strict=True) == grammar
        except InvalidSamplingError as error:
            not_strict[name] = error.message
        found = replies(grammar)
        assert found or name in FAR, name
        drawn_replies += [(name, it) for it in found if name not in FREE]
    assert not not_strict
    refused = zod("check", stdin=json.dumps(drawn_replies))
    assert [it for it in refused if it[0] not in not_strict] == []


# pydantic.


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict, total=False):
    a: int
    b: str


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str | None = None


class Node(BaseModel):
    name: str
    children: Annotated[list[Node], Field(max_length=2)] = []


class Order(BaseModel):
    id: uuid.UUID
    at: datetime.date
    color: Color = Color.RED
    tags: Annotated[list[str], Field(max_length=2)] = Field(description="any")
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Closed(BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    a: int


PYDANTIC: Final[dict[str, Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "None": None,
    "bytes": bytes,
    "Decimal": decimal.Decimal,
    "Decimal with digits": Annotated[decimal.Decimal, Field(max_digits=5, decimal_places=2)],
    "date": datetime.date,
    "datetime": datetime.datetime,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "UUID": uuid.UUID,
    "UUID4": pydantic.UUID4,
    "Path": Path,
    "AnyUrl": pydantic.AnyUrl,
    "IPv4Address": ipaddress.IPv4Address,
    "IPv6Address": ipaddress.IPv6Address,
    "IPv4Network": ipaddress.IPv4Network,
    "IPvAnyAddress": pydantic.IPvAnyAddress,
    "SecretStr": pydantic.SecretStr,
    "Json": pydantic.Json,
    "Base64Bytes": pydantic.Base64Bytes,
    "constrained str": Annotated[str, Field(min_length=2, max_length=4)],
    "pattern": Annotated[str, Field(pattern=r"^[a-z]+-\d{2}$")],
    "constrained int": Annotated[int, Field(ge=1, lt=10)],
    "multiple of": Annotated[int, Field(multiple_of=5)],
    "constrained float": Annotated[float, Field(gt=0, le=1)],
    "Literal": Literal["a", 1],
    "Enum": Color,
    "Optional": int | None,
    "Union": int | str | list[int],
    "list": Annotated[list[int], Field(min_length=1, max_length=3)],
    "set": set[int],
    "frozenset": frozenset[str],
    "tuple": tuple[int, str],
    "tuple of any length": tuple[int, ...],
    "NamedTuple": Point,
    "dict": dict[str, int],
    "dict by int": dict[int, str],
    "dict by Enum": dict[Color, int],
    "dict by UUID": dict[uuid.UUID, int],
    "dict by pattern": dict[Annotated[str, Field(pattern="^k_")], int],
    "TypedDict": Options,
    "model": Order,
    "closed model": Closed,
    "discriminated": Annotated[Cat | Dog, Field(discriminator="kind")],
    "recursive": Node,
    "Any": Any,
}
NOT_STRICT: Final = {
    "set": "uniqueItems",
    "frozenset": "uniqueItems",
    "dict by UUID": "propertyNames",
}
"""Types whose schemas say more than can be enforced, and the keyword."""
UNSAID: Final = {
    *("Path", "IPv4Network", "IPvAnyAddress", "Json", "Base64Bytes", "AnyUrl", "bytes"),
    *(
        "dict by int",
        "dict by UUID",
        "dict by pattern",
        "Decimal with digits",
        "date",
        "datetime",
        "time",
        "timedelta",
        "Decimal",
    ),
    *("model", "int", "IPv6Address"),
}
"""Types of which the schema says less than pydantic checks, or says it by a format alone."""


@pytest.mark.parametrize("name", PYDANTIC)
def test_replies_by_pydantics_schemas_are_what_pydantic_accepts(name: str) -> None:
    adapter = TypeAdapter(PYDANTIC[name])
    schema = adapter.json_schema()
    grammar = json_schema(schema)
    if name in NOT_STRICT:
        with pytest.raises(InvalidSamplingError, match=f"schema's {NOT_STRICT[name]} at #/"):
            json_schema(schema, strict=True)
        assert grammar.unenforced == (NOT_STRICT[name],)
    else:
        assert json_schema(schema, strict=True) == grammar and not grammar.unenforced
    found = replies(grammar)
    assert found
    for text in found:
        try:
            adapter.validate_json(text)
        except pydantic.ValidationError:
            assert name in UNSAID, text
