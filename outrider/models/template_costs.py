"""What the filters, tests, methods and operators of chat templates take, computed before they run.

A cost is a function of the budget and of the arguments of the operation; it raises BudgetSpentError
for what has no room, and TemplateRuntimeError for arguments whose costs nobody knows. What is not
listed here cannot be called: filters that are random or take more than linear time, methods that
encode, translate or make numbers of bytes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from types import GeneratorType
from typing import Any, Final, TypeAlias

from jinja2 import TemplateRuntimeError
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace
from markupsafe import Markup

from outrider.models.template_budget import (
    MAX_BITS,
    MAX_ITEMS,
    MAX_OTHER_KEYS,
    SIZED,
    RenderBudget,
    View,
    bits,
    char_bytes,
)

Cost: TypeAlias = Callable[..., None]

STEP_CHARS: Final = 1 << 10
"""Characters looked at that cost one step."""
_STEP_PAIRS: Final = 1 << 12
"""Pairs of characters compared that cost one step."""
_MAX_NUMBER_CHARS: Final = 1 << 12
"""Longest text that is read as a number."""
_MAX_FORMAT_CHARS: Final = 1 << 12
_MAX_NAME_CHARS: Final = 256
"""Longest name of an attribute, filter or test that is given as a text."""
_MAX_KEY_CHARS: Final = 1 << 16
_MAX_STRIPPED_CHARS: Final = 1 << 10
_MAX_INDENT: Final = 16
"""Most characters of JSON's indentation for a level, and of its separators."""
_MAX_PRECISION: Final = 64
_MAX_FIELD_CHARS: Final = 10_000
"""Of a number in a format."""
_CHAR_BYTES: Final = 88
"""Of a text of one character in a list."""
_PIECE_BYTES: Final = 88
"""Of a short text in a list, beside its characters."""
_CONTROLS: Final = "".join(chr(it) for it in range(0x20) if chr(it) not in "\b\t\n\f\r")
_LINE_ENDS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_WIDE: Final = re.compile(r"\d{5}|\*|\{[^{}]*\{")
"""In a format: a width of five digits, or one that comes from elsewhere."""
_FIELD_OF: Final = re.compile(r"\{[^{}:!]*[.\[]")
"""In a format: a part of an argument."""
_LITERAL: Final = re.compile(r"%[^a-zA-Z%]*[ra]|!")
"""In a format: an argument as it is written in Python."""

COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda item, items: item in items,
    "notin": lambda item, items: item not in items,
}


def check_compared(budget: RenderBudget, name: str, left: Any, right: Any) -> None:
    """A comparison, by an operator or a test of this name. Whatever lists hold is compared too."""
    budget.spend()
    if isinstance(left, str) and isinstance(right, str):
        budget.spend((len(left) + len(right)) // STEP_CHARS)
    elif name in ("in", "notin"):
        is_hashed = isinstance(right, dict)
        looked_at = (left,) if is_hashed else (left, right)
        budget.spend(budget.extent(*looked_at).size // STEP_CHARS)
    elif isinstance(left, SIZED) and isinstance(right, SIZED):
        budget.spend(budget.extent(left, right).size // STEP_CHARS)


def check_key(budget: RenderBudget, key: Any) -> None:
    """What is looked up, or a key of a dictionary: a tuple is hashed with all that is in it."""
    if isinstance(key, tuple):
        budget.extent(key)
    elif isinstance(key, str) and len(key) > _MAX_KEY_CHARS:
        raise TemplateRuntimeError("a key is too long")


def check_test(budget: RenderBudget, name: str, args: tuple[Any, ...]) -> None:
    if name in _NUMERIC_TESTS:
        _check_numbers(*args)
    elif name in ("lower", "upper"):
        budget.need(budget.extent(args[0]).text_bytes())
    elif len(args) == 2 and name != "sameas":
        check_compared(budget, "in" if name == "in" else "eq", *args)
    budget.spend()


_NUMERIC_TESTS: Final = frozenset({"odd", "even", "divisibleby"})
"""Of a text they would make a format."""


def _check_numbers(*values: Any) -> None:
    if not all(isinstance(it, int | float) for it in values):
        raise TemplateRuntimeError("what is for numbers is given something else")


def check_bits(num_bits: int) -> None:
    if num_bits > MAX_BITS:
        raise TemplateRuntimeError("a number is too large")


def check_operator(budget: RenderBudget, name: str, left: Any, right: Any) -> None:
    """An operator between two values."""
    if name == "%" and isinstance(left, str):
        check_format(budget, left, right if isinstance(right, tuple) else (right,))
    elif name == "*" and (isinstance(left, SIZED) or isinstance(right, SIZED)):
        sized, count = (left, right) if isinstance(left, SIZED) else (right, left)
        _check_numbers(count)
        _check_repeated(budget, sized, max(0, int(count)))
    elif name == "+" and isinstance(left, SIZED) and isinstance(right, SIZED):
        if isinstance(left, str):
            budget.need(budget.extent(left, right).text_bytes())
        else:
            budget.need(0, len(left) + len(right))
    elif isinstance(left, SIZED) or isinstance(right, SIZED):
        raise TemplateRuntimeError(f"the operator {name} is for numbers")
    elif name == "*":
        check_bits(bits(left) + bits(right))
    elif name == "**":
        _check_numbers(left, right)
        if abs(right) > MAX_BITS:
            raise TemplateRuntimeError("a power is too high")
        check_bits(bits(left) * max(1, int(abs(right))))


def _check_repeated(budget: RenderBudget, value: Any, count: int) -> None:
    if isinstance(value, str):
        budget.need(len(value) * char_bytes(value) * count)
    else:
        budget.need(0, len(value) * count)


def check_format(budget: RenderBudget, text: str, args: Iterable[Any]) -> None:
    """A format, of either kind. Each of its fields may show everything that it is given."""
    if len(text) > _MAX_FORMAT_CHARS or _WIDE.search(text):
        raise TemplateRuntimeError("a format is too long, or too wide")
    if _FIELD_OF.search(text):
        raise TemplateRuntimeError("a format shows a part of its argument")
    given = budget.extent(text, *args)
    num_fields = text.count("%") + text.count("{")
    field_bytes = given.text_bytes(10 if _LITERAL.search(text) else 1)
    budget.need((num_fields + 1) * field_bytes)
    if re.search(r"\d\d\d", text):
        budget.need(num_fields * _MAX_FIELD_CHARS * given.char_bytes)


def check_call(budget: RenderBudget, function: Any, args: tuple[Any, ...]) -> None:
    """A call of what is no macro and no method of a text."""
    own = getattr(function, "__self__", None)
    if function in (dict, Namespace):
        for it in args:
            budget.extent(it)
            if isinstance(it, SIZED) and not isinstance(it, dict) and len(it) > MAX_OTHER_KEYS:
                raise TemplateRuntimeError(f"something has more than {MAX_OTHER_KEYS} keys")
    elif isinstance(own, list | tuple):
        budget.spend(budget.extent(own, *args).size // STEP_CHARS)
    elif not isinstance(function, LoopContext):
        budget.spend(budget.extent(*args).size // STEP_CHARS)


def is_known(value: Any, attribute: str) -> bool:
    """Whether a template may ask a value for this attribute."""
    for kind, names in _ATTRIBUTES:
        if isinstance(value, kind):
            return attribute in names
    return True


# Texts.


def _bytes(text: str) -> int:
    return len(text) * char_bytes(text) * (5 if isinstance(text, Markup) else 1)


def _copied(budget: RenderBudget, text: str, *_: Any, **__: Any) -> None:
    budget.need(_bytes(text))


def _looked_at(budget: RenderBudget, text: str, *_: Any, **__: Any) -> None:
    budget.spend(1 + len(text) // STEP_CHARS)


def _looked_at_from_behind(
    budget: RenderBudget, text: str, wanted: Any = "", *_: Any, **__: Any
) -> None:
    """Python looks for a text from behind in the product of both lengths."""
    num_pairs = len(text) * max(1, len(wanted) if isinstance(wanted, str) else 1)
    budget.spend(1 + num_pairs // _STEP_PAIRS)


def _begins(budget: RenderBudget, text: str, wanted: Any = "", *_: Any, **__: Any) -> None:
    budget.spend(1 + budget.extent(wanted).size // STEP_CHARS)


def _changed_case(budget: RenderBudget, text: str, *_: Any, **__: Any) -> None:
    # CPython takes twelve bytes a character on the way, and three characters may come of one.
    budget.need(len(text) * (1 if text.isascii() else 24))


def _escaped(budget: RenderBudget, text: str, *_: Any, **__: Any) -> None:
    budget.need(5 * len(text) * char_bytes(text))


def _in_words(budget: RenderBudget, text: str, *_: Any, **__: Any) -> None:
    budget.need(_CHAR_BYTES * len(text))


def _trimmed(budget: RenderBudget, text: str, chars: Any = None, *_: Any, **__: Any) -> None:
    num_chars = len(chars) if isinstance(chars, str) else 1
    if num_chars > _MAX_STRIPPED_CHARS:
        raise TemplateRuntimeError("there are too many characters to trim")
    budget.need(_bytes(text))
    budget.spend(len(text) * num_chars // _STEP_PAIRS)


def _padded(budget: RenderBudget, text: str, width: int = 80, fill: str = " ") -> None:
    _check_numbers(width)
    budget.need((len(text) + max(0, width)) * 4 if char_bytes(text + fill[:1]) > 1 else 0)
    budget.need(len(text) + max(0, width))


def _indented(
    budget: RenderBudget, text: str, width: int | str = 4, first: bool = False, blank: bool = False
) -> None:
    indent = width if isinstance(width, str) else " " * min(max(0, width), MAX_ITEMS)
    num_lines = _num_lines(text)
    wide = max(char_bytes(text), char_bytes(indent)) * (5 if isinstance(text, Markup) else 1)
    budget.need((len(text) * 3 + num_lines * (len(indent) + 1)) * wide, 0)
    budget.need(num_lines * _PIECE_BYTES, num_lines)


def _num_lines(text: str) -> int:
    return 1 + sum(map(text.count, _LINE_ENDS if not text.isascii() else _LINE_ENDS[:7]))


def _truncated(
    budget: RenderBudget,
    text: str,
    length: int = 255,
    killwords: bool = False,
    end: str = "...",
    leeway: int | None = None,
) -> None:
    budget.need(2 * budget.extent(text, end).text_bytes())


def _replaced(
    budget: RenderBudget, text: str, old: Any, new: Any, count: int | None = None
) -> None:
    if not (isinstance(old, str) and isinstance(new, str)):
        raise TemplateRuntimeError("what is for texts is given something else")
    num = text.count(old)
    growth = max(0, len(new) - len(old)) * (5 if isinstance(text, Markup) else 1)
    wide = max(char_bytes(text), char_bytes(new)) * (5 if isinstance(text, Markup) else 1)
    budget.need((len(text) + num * (growth + len(new) * isinstance(text, Markup))) * wide)


def _split(budget: RenderBudget, text: str, sep: str | None = None, maxsplit: int = -1) -> None:
    most = text.count(sep) + 1 if isinstance(sep, str) and sep else len(text) // 2 + 1
    _pieces(budget, text, min(most, maxsplit + 1) if maxsplit >= 0 else most)


def _split_from_behind(
    budget: RenderBudget, text: str, sep: str | None = None, maxsplit: int = -1
) -> None:
    _looked_at_from_behind(budget, text, sep)
    _split(budget, text, sep, maxsplit)


def _split_in_lines(budget: RenderBudget, text: str, keepends: bool = False) -> None:
    _pieces(budget, text, _num_lines(text))


def _split_in_three(budget: RenderBudget, text: str, sep: str) -> None:
    _looked_at_from_behind(budget, text, sep)
    _pieces(budget, text, 3)


def _pieces(budget: RenderBudget, text: str, count: int) -> None:
    budget.need(_bytes(text) + count * _PIECE_BYTES, count)


def _joined(budget: RenderBudget, text: str, items: Any = ()) -> None:
    _join(budget, items, text)


METHODS_OF_TEXT: Final[dict[str, Cost]] = {
    **dict.fromkeys(("isalnum", "isalpha", "isascii", "isdecimal", "isdigit"), _looked_at),
    **dict.fromkeys(("isidentifier", "islower", "isnumeric", "isprintable"), _looked_at),
    **dict.fromkeys(("isspace", "istitle", "isupper"), _looked_at),
    **dict.fromkeys(("find", "index", "count"), _looked_at),
    **dict.fromkeys(("rfind", "rindex"), _looked_at_from_behind),
    **dict.fromkeys(("startswith", "endswith"), _begins),
    **dict.fromkeys(("removeprefix", "removesuffix"), _copied),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), _trimmed),
    **dict.fromkeys(("upper", "lower", "title", "capitalize", "casefold"), _changed_case),
    "swapcase": _changed_case,
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded),
    "replace": _replaced,
    "split": _split,
    "rsplit": _split_from_behind,
    "splitlines": _split_in_lines,
    **dict.fromkeys(("partition", "rpartition"), _split_in_three),
    "join": _joined,
}

# Filters.


def _free(budget: RenderBudget, *_: Any, **__: Any) -> None:
    budget.spend()


def _num_items(value: Any) -> int:
    return len(value) if isinstance(value, SIZED) else 0


def _each(budget: RenderBudget, value: Any, num_more: int = 0) -> None:
    """A list of these items, and of so many more, is made."""
    count = _num_items(value) + num_more
    budget.need(_CHAR_BYTES * len(value) if isinstance(value, str) else 0, count)
    budget.spend(count)


def _listed(budget: RenderBudget, value: Any) -> None:
    _each(budget, value)


def _reversed(budget: RenderBudget, value: Any) -> None:
    if isinstance(value, str):
        _copied(budget, value)
    else:
        _each(budget, value)


def _batched(budget: RenderBudget, value: Any, *args: Any, **kwargs: Any) -> None:
    for count in (*args[:1], kwargs.get("linecount", 0), kwargs.get("slices", 0)):
        _check_numbers(count)
        _each(budget, value, max(0, int(count)))


def _chosen(budget: RenderBudget, value: Any, *args: Any, **kwargs: Any) -> None:
    """Filters that look at each item by itself."""
    names = [it for it in (*args[:2], kwargs.get("attribute")) if isinstance(it, str)]
    _each(budget, value)
    # The second of `select` and the like may be what is compared with, of any length.
    budget.spend(_num_items(value) * _num_parts(*names[:1]))


def _num_parts(*names: Any) -> int:
    texts = [it for it in names if isinstance(it, str)]
    if any(len(it) > _MAX_NAME_CHARS for it in texts):
        raise TemplateRuntimeError("a name is too long")
    return 1 + sum(it.count(".") + it.count(",") for it in texts)


def _compared(budget: RenderBudget, value: Any, *args: Any, **kwargs: Any) -> None:
    """Filters that compare the items with one another, and keep a copy of each in lower case."""
    num_parts = _num_parts(*args, *kwargs.values())
    given, count = budget.extent(value), _num_items(value)
    width = given.char_bytes
    budget.need(given.size * (1 if width == 1 else 3 * width) + 64 * count * num_parts, count)
    log = count.bit_length()
    budget.spend((count * num_parts + given.size // STEP_CHARS) * max(1, log))
    if isinstance(value, str):
        budget.need(_CHAR_BYTES * count)


def _unique(budget: RenderBudget, value: Any, *args: Any, **kwargs: Any) -> None:
    _compared(budget, value, *args, **kwargs)
    attribute = kwargs.get("attribute", args[1] if len(args) > 1 else None)
    if isinstance(value, SIZED) and not isinstance(value, str):
        num_others = sum(attribute is not None or not isinstance(it, str) for it in value)
        if num_others > MAX_OTHER_KEYS:
            raise TemplateRuntimeError(f"something has more than {MAX_OTHER_KEYS} keys")
        budget.spend(num_others * num_others >> 8)


def _join(budget: RenderBudget, value: Any, d: Any = "", attribute: Any = None) -> None:
    if not isinstance(d, str):
        raise TemplateRuntimeError("what is for texts is given something else")
    count = _num_items(value)
    given = budget.extent(value, d)
    text = given._replace(size=given.size + count * len(d), is_nested=_has_nested(value))
    budget.need(text.text_bytes() + (_CHAR_BYTES if isinstance(value, str) else 64) * count)
    budget.spend(count * _num_parts(attribute))


def _has_nested(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return (
        isinstance(value, SIZED)
        and not isinstance(value, str)
        and any(isinstance(it, SIZED) and not isinstance(it, str) for it in items)
    )


def _in_json(
    budget: RenderBudget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> None:
    given = budget.extent(value)
    num_chars = given.size * (12 if ensure_ascii and given.char_bytes == 4 else 6)
    if given.size > _MAX_KEY_CHARS and not ensure_ascii:  # of long texts it is worth counting
        budget.spend(given.size * len(_CONTROLS) // STEP_CHARS // 16)
        num_chars = given.size * 2 + 4 * _num_controls(value)
    budget.need(num_chars * (1 if ensure_ascii else given.char_bytes))
    num_spaces = len(indent) if isinstance(indent, str) else indent or 0
    if num_spaces > _MAX_INDENT or any(len(it) > _MAX_INDENT for it in separators or ()):
        raise TemplateRuntimeError("JSON is written with too much space")
    if num_spaces:
        num_lines, num_chars = _lines_of_json(value, num_spaces)
        budget.need(num_lines * _PIECE_BYTES * 3 + num_chars * given.char_bytes)
    elif separators is not None:
        budget.need(given.size * 2 * _MAX_INDENT)


def _num_controls(value: Any) -> int:
    """Characters that JSON writes as six."""
    num, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            num += sum(map(one.count, _CONTROLS))
        elif isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            left += one
    return num


def _lines_of_json(value: Any, num_spaces: int) -> tuple[int, int]:
    """Lines of indented JSON, and the spaces before them."""
    num_lines, num_chars, left = 0, 0, [(value, 1)]
    while left:
        one, depth = left.pop()
        inner = list(one.values()) if isinstance(one, dict) else one
        if isinstance(inner, list | tuple):
            num_lines += len(inner) + 1
            num_chars += (len(inner) + 1) * depth * num_spaces
            left += [(it, depth + 1) for it in inner]
    return num_lines, num_chars


def _in_url(budget: RenderBudget, value: Any) -> None:
    given = budget.extent(value)
    budget.need(given.size * given.char_bytes * 16)


def _number(budget: RenderBudget, value: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(value, str) and len(value) > _MAX_NUMBER_CHARS:
        raise TemplateRuntimeError("a number is too long")
    budget.spend()


def _rounded(budget: RenderBudget, value: Any, precision: int = 0, method: str = "common") -> None:
    _check_numbers(value, precision)
    if abs(precision) > _MAX_PRECISION:
        raise TemplateRuntimeError("a number is rounded too finely")
    budget.spend()


def _formatted(budget: RenderBudget, value: str, *args: Any, **kwargs: Any) -> None:
    check_format(budget, value, (*args, *kwargs.values()))


FILTERS: Final[dict[str, Cost]] = {
    **dict.fromkeys(("length", "count", "first", "last", "default", "d", "attr", "abs"), _free),
    **dict.fromkeys(("string", "safe"), _copied),
    **dict.fromkeys(("e", "escape", "forceescape"), _escaped),
    **dict.fromkeys(("upper", "lower", "capitalize"), _changed_case),
    **dict.fromkeys(("title", "wordcount"), _in_words),
    "trim": _trimmed,
    "center": _padded,
    "indent": _indented,
    "truncate": _truncated,
    "replace": _replaced,
    "format": _formatted,
    "join": _join,
    "tojson": _in_json,
    "urlencode": _in_url,
    **dict.fromkeys(("int", "float", "filesizeformat"), _number),
    "round": _rounded,
    **dict.fromkeys(("list", "items"), _listed),
    "reverse": _reversed,
    **dict.fromkeys(("batch", "slice"), _batched),
    **dict.fromkeys(("map", "select", "reject", "selectattr", "rejectattr"), _chosen),
    **dict.fromkeys(("sort", "dictsort", "groupby", "min", "max"), _compared),
    "unique": _unique,
}
TEXTUAL: Final = frozenset(
    {"string", "safe", "e", "escape", "forceescape", "upper", "lower", "capitalize", "title"}
    | {"wordcount", "trim", "center", "indent", "truncate", "replace", "format"}
)
"""Filters that turn any value into text first."""

_ATTRIBUTES: Final[tuple[tuple[Any, frozenset[str]], ...]] = (
    (str, frozenset({*METHODS_OF_TEXT, "format", "format_map"})),
    (dict, frozenset({"get", "items", "keys", "values"})),
    (list, frozenset({"index", "count"})),
    (tuple, frozenset({"index", "count", "grouper", "list"})),
    (float, frozenset({"is_integer"})),
    ((int, bytes, set, range, *View, GeneratorType, type(None)), frozenset()),
)
"""Attributes of values that Python brings; those of Jinja's own are all allowed."""
