"""Jinja in bounds: a chat template comes with a model file, and the file may be anybody's.

Jinja's sandbox protects the process that a template runs in, not its time and memory. Here every
iteration of a loop and every call costs a step, and an operation on long texts costs steps by
their length. The size of a result is computed and checked before the result is made. A container
counts with everything inside it, once per occurrence: a few lists that hold one another can stand
for a text without end. Real templates stay far below the bounds.

Filters that are random, or take more than linear time, are removed.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError, TemplateRuntimeError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from outrider.models.tools import UnreadArguments

MAX_SOURCE_CHARS: Final = 1 << 18
MAX_STEPS: Final = 1 << 19
MAX_CHARS: Final = 1 << 23
"""Most characters of a rendering and of every text made on the way; also the most items of a
list."""
MAX_RENDER_S: Final = 2.0
"""Most computing time of one rendering in its thread, whatever its number of steps."""
_STEP_CHARS: Final = 1 << 10
"""Characters produced that cost one step."""
_STEP_ITEMS: Final = 1 << 6
"""Items of a list that is made which cost one step: each takes eight bytes."""
_MAX_WORK: Final = 1 << 26
"""Greatest product of the two greatest sizes that one call works on."""
_MAX_BITS: Final = 1 << 12
"""Most bits of an integer."""
_MAX_FORMAT_CHARS: Final = 1 << 12
_WIDE: Final = re.compile(r"\d{5}|\*|\{[^{}]*\{")
"""In a format: a width of five digits, or one that comes from elsewhere."""
_DATE_FORMAT: Final = re.compile(r"(?:[^%]|%[-_0^#]?[A-Za-rt-z%])*")
"""Without widths, which make a text as long as they say, and without %s, seconds that depend on the
time zone of the machine."""
_CLOCK_CHECK_STEPS: Final = 256
"""Steps between two readings of the clock."""
_MAX_INDENT: Final = 16
"""Most spaces of JSON indentation per level."""
_MAX_SEPARATOR_CHARS: Final = 16
_MULTIPLYING: Final = frozenset({"replace", "join", "expandtabs", "translate", "center", "indent"})
"""Filters, and methods of texts, that may make a product of their arguments."""
_TEXTUAL: Final = frozenset(
    {"string", "join", "tojson", "format", "escape", "e", "forceescape", "urlencode", "truncate"}
    | {"upper", "lower", "trim", "title", "capitalize", "wordcount", "replace", "center", "indent"}
)
"""Filters that turn any value into text."""
_LOOKING_AT_NO_ITEM: Final = frozenset(
    {"length", "count", "first", "last", "default", "d", "attr", "items", "safe", "abs", "int"}
    | {"float", "round", "filesizeformat"}
)
"""Filters whose work does not grow with their argument. Of what is in neither set, each item is an
object that may be made anew."""
_SPLITTING: Final = frozenset({"title", "wordcount", "indent", "urlencode"})
"""Filters that make a list of a text's words or lines on the way."""
_LEFT_OUT: Final = frozenset(
    {"random", "urlize", "wordwrap", "pprint", "striptags", "xmlattr"}
    | {"sum"}  # of lists it copies what it has for each of them
)
_ASKING: Final = ("defined", "undefined", "default", "d")
"""Tests and filters for variables that may not be given."""
_SIZED: Final = (str, bytes, list, tuple, dict, set, range)
_NESTING: Final = (list, tuple, dict, set, Namespace)

BROKEN: Final = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions that a faulty template may raise."""


class BudgetSpentError(TemplateRuntimeError):
    """A rendering took too many steps or too long."""


@dataclass(slots=True)
class RenderBudget:
    """Steps and time that one rendering has left."""

    clock: Callable[[], float]
    ends_at: float
    steps: int = MAX_STEPS

    def spend(self, steps: int = 1) -> None:
        """Raises BudgetSpentError when it is used up."""
        before = self.steps
        self.steps = before - steps
        if self.steps < 0:
            raise BudgetSpentError(f"it takes more than {MAX_STEPS} steps")
        is_check_due = before // _CLOCK_CHECK_STEPS != self.steps // _CLOCK_CHECK_STEPS
        if is_check_due and self.clock() > self.ends_at:
            raise BudgetSpentError(f"it takes more than {MAX_RENDER_S:g} s of computing")


_RUNNING: Final[ContextVar[RenderBudget]] = ContextVar("running")
"""The budget of the rendering under way in this thread."""


class _Generation(Extension):
    """`{% generation %}` of `transformers`, which marks the assistant's words for training. Here it
    only renders its body; as there, variables that the body sets end with it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Scope:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Templates as Hugging Face `transformers` sets them up (trimmed blocks, loop controls,
    generation blocks, raise_exception), in bounds."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`, in seconds of the calling thread's computing time, ends a rendering that takes
        too long; no template sees it."""
        # Not optimized: the optimizer computes constants, as large as they are, when it compiles.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            optimized=False,
            finalize=self._printed,
            extensions=[loopcontrols, _Generation],
        )
        self._clock = clock
        filters = {**self.filters, "tojson": _to_json}
        self.filters = {
            name: self._guarded(name, it) for name, it in filters.items() if name not in _LEFT_OUT
        }
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = _refuse

    def compiled(self, source: str) -> Template:
        """Raises one of BROKEN, or SyntaxError."""
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateError(f"it has {len(source)} characters; {MAX_SOURCE_CHARS} at most")
        self._begin()
        return self.from_string(source)

    def variables(self, source: str) -> frozenset[str]:
        """Names of the variables that a template reads and does not set for itself. Raises what
        `compiled` raises."""
        tree = self.parse(source)
        read = meta.find_undeclared_variables(tree)
        own = {it.name for it in tree.find_all(nodes.Name) if it.ctx == "store"}
        # A variable that it sets where it is not given, to its default, is read all the same.
        asked = {
            it.node.name
            for it in tree.find_all((nodes.Test, nodes.Filter))
            if isinstance(it.node, nodes.Name) and it.name in _ASKING
        }
        return frozenset(read - (own - asked) - self.globals.keys())

    def rendered(self, template: Template, variables: Mapping[str, Any]) -> tuple[str, int]:
        """The rendered text and the number of steps it took. Raises one of BROKEN."""
        budget = self._begin()
        pieces, num_chars = [], 0
        for piece in template.generate(variables):
            num_chars += len(piece)
            budget.spend(1 + len(piece) // _STEP_CHARS)
            if num_chars > MAX_CHARS:
                raise TemplateRuntimeError(f"it makes more than {MAX_CHARS} characters")
            pieces.append(piece)
        return "".join(pieces), MAX_STEPS - budget.steps

    # What compiled templates call, by way of Jinja.

    def tick(self) -> str:
        """Called in every iteration of a loop."""
        self._budget.spend()
        return ""

    def concatenated(self, *parts: Any) -> str:
        """The operator `~`."""
        self._made(sum(map(self._extent, parts)))
        return "".join(map(str, parts))

    def collected(self, items: Any) -> Any:
        """A list, tuple or dictionary as it is written in the template, and a slice."""
        self._extent(items)
        if isinstance(items, str | bytes):
            self._made(len(items))
        return items

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls other than filters: checked before and measured after."""
        own = getattr(__obj, "__self__", None)
        if isinstance(own, str | bytes):
            operands = (own, *args, *kwargs.values())
            __self._check_work(operands, multiplies=__obj.__name__ in _MULTIPLYING)
            __self._budget.spend(_num_pieces(own, __obj.__name__, args))
        else:
            __self._check_work((*args, *kwargs.values()), multiplies=False)
        result = super().call(__context, __obj, *args, **kwargs)
        __self._extent(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators that can make much of little."""
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator == "**":
            if not isinstance(right, int | float) or abs(right) > _MAX_BITS:
                raise TemplateRuntimeError("a power is too high")
            self._check_bits(_bits(left) * max(1, int(abs(right))))
        elif operator == "*":
            self._check_bits(_bits(left) + _bits(right))
            for one, other in ((left, right), (right, left)):
                if isinstance(one, _SIZED) and isinstance(other, int):
                    self._made(self._extent(one) * max(0, other))
                    self._listed(len(one) * max(0, other), one)
        elif isinstance(left, _SIZED) and isinstance(right, _SIZED):
            self._made(self._extent(left) + self._extent(right))
            self._listed(len(left) + len(right), left)
        self._budget.spend()
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, which Jinja wraps for its own reasons."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    # Accounting.

    @property
    def _budget(self) -> RenderBudget:
        return _RUNNING.get()

    def _begin(self) -> RenderBudget:
        budget = RenderBudget(self._clock, self._clock() + MAX_RENDER_S)
        _RUNNING.set(budget)
        return budget

    def _printed(self, value: Any) -> Any:
        self._extent(value)
        return value

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            operands = [_listed(it) if name in _TEXTUAL else it for it in args]
            if name == "format" and isinstance(args[0], str):
                _check_format(args[0])
            self._check_work(
                (*operands, *kwargs.values()),
                multiplies=name in _MULTIPLYING,
                is_textual=name in _TEXTUAL,
            )
            if name in _SPLITTING:
                self._budget.spend(_size(operands[0]) // 2)
            elif name not in _TEXTUAL | _LOOKING_AT_NO_ITEM:
                self._budget.spend(sum(map(_size, (*operands, *kwargs.values()))))
            result = function(*operands, **kwargs)
            if isinstance(result, str):
                self._made(len(result))
            return result

        return guarded

    def _check_work(
        self, operands: tuple[Any, ...], *, multiplies: bool, is_textual: bool = False
    ) -> None:
        """Raises TemplateRuntimeError for a call that could take long, or make much."""
        self._budget.spend()
        measure = self._extent if is_textual or multiplies else _size
        sizes = sorted(map(measure, operands), reverse=True)
        if sizes and sizes[0] > MAX_CHARS:
            raise TemplateRuntimeError("an argument is too large")
        if multiplies and max(1, sizes[0]) * max(1, *sizes[1:], 1) > _MAX_WORK:
            raise TemplateRuntimeError("a call makes too much of its arguments")
        self._budget.spend(sum(sizes) // _STEP_CHARS)

    def _extent(self, value: Any) -> int:
        """Characters and items in all that is in a value, as often as it is. Raises
        TemplateRuntimeError for one that has too many."""
        if not isinstance(value, _NESTING):
            return _size(value)
        total, left = 0, [value]
        while left:
            one = left.pop()
            # A number inside is as long as its digits: schemas have bounds such as 2^53 - 1.
            total += 1 + (len(one) if isinstance(one, _SIZED) else _bits(one) // 3)
            if total > MAX_CHARS:
                raise TemplateRuntimeError(f"something has more than {MAX_CHARS} items")
            if isinstance(one, Namespace):
                one = one._Namespace__attrs
            if isinstance(one, dict):
                left += [*one.keys(), *one.values()]
            elif isinstance(one, list | tuple | set):
                left += one
            self._budget.spend()
        return total

    def _made(self, size: int) -> None:
        """Something of this size is made, or is about to be. Raises TemplateRuntimeError."""
        if size > MAX_CHARS:
            raise TemplateRuntimeError(f"something has more than {MAX_CHARS} characters or items")
        self._budget.spend(size // _STEP_CHARS)

    def _listed(self, num_items: int, kind: object) -> None:
        """A list of so many items is about to be made, if `kind` is one."""
        if isinstance(kind, list | tuple):
            self._budget.spend(num_items // _STEP_ITEMS)

    @staticmethod
    def _check_bits(bits: int) -> None:
        if bits > _MAX_BITS:
            raise TemplateRuntimeError("a number is too large")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        return parsed


class _Bounds(NodeTransformer):
    """Adds a tick to every loop, and routes list literals, slices and `~` through the
    environment."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_own("tick", []), lineno=node.lineno))
        if node.test is not None:
            # Which items a loop leaves out costs as much as its turns.
            node.test = nodes.Not(nodes.Or(_own("tick", []), nodes.Not(node.test)))
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _own("collected", [node])

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _own("collected", [node]) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        is_slice = isinstance(node.arg, nodes.Slice) and node.ctx == "load"
        return _own("collected", [node]) if is_slice else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _own("concatenated", node.nodes)


def _own(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter of `transformers`: Jinja's own sorts keys and escapes characters for HTML, which
    no model was trained on. Arguments that are no JSON stay as they are."""
    if isinstance(value, UnreadArguments):
        return str(value)
    num_spaces = len(indent) if isinstance(indent, str) else indent or 0
    if num_spaces > _MAX_INDENT or any(len(it) > _MAX_SEPARATOR_CHARS for it in separators or ()):
        raise TemplateRuntimeError("JSON is written with too much space")
    if num_spaces and _indented_chars(value, num_spaces) > MAX_CHARS:
        raise TemplateRuntimeError("JSON is written with too much space")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _indented_chars(value: Any, num_spaces: int) -> int:
    """About the spaces before the lines of JSON, at most."""
    total, left = 0, [(value, 1)]
    while left and total <= MAX_CHARS:
        one, depth = left.pop()
        inner = list(one.values()) if isinstance(one, dict) else one
        if isinstance(inner, list | tuple):
            total += (len(inner) + 1) * depth * num_spaces
            left += [(it, depth + 1) for it in inner]
    return total


class TemplateRefusal(TemplateError):
    """A template's own `raise_exception`: it is whole, and takes no such chat."""


def _refuse(reason: str) -> NoReturn:
    raise TemplateRefusal(reason)


def date_formatter(day: date) -> Callable[[str], str]:
    """The `strftime_now` of `transformers` for the beginning of a day."""
    begins = datetime.combine(day, time())

    def strftime_now(form: str) -> str:
        if len(form) > _MAX_FORMAT_CHARS or not _DATE_FORMAT.fullmatch(form):
            raise TemplateRuntimeError("a format of a date is too long, or not known")
        return begins.strftime(form)

    return strftime_now


def _listed(value: Any) -> Any:
    """A list of an iterator's items, so that it can be measured; other values as they are."""
    return list(value) if isinstance(value, Iterator) else value


def _size(operand: Any) -> int:
    if isinstance(operand, _SIZED):
        return len(operand)
    return abs(operand) if isinstance(operand, int) else 0


def _num_pieces(text: str | bytes, method: str, args: tuple[Any, ...]) -> int:
    """Most pieces that a method makes of a text."""
    if method == "splitlines":
        return len(text) if isinstance(text, bytes) else text.count("\n") + text.count("\r") + 1
    if method not in ("split", "rsplit"):
        return 0
    separator = args[0] if args else None
    if isinstance(text, str) and isinstance(separator, str) and separator:
        return text.count(separator) + 1
    return len(text) // 2 + 1


def _bits(number: Any) -> int:
    return number.bit_length() if isinstance(number, int) else 0


def _check_format(text: str) -> None:
    if len(text) > _MAX_FORMAT_CHARS or _WIDE.search(text):
        raise TemplateRuntimeError("a format is too long, or too wide")
