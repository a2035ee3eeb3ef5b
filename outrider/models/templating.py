"""Jinja in bounds: a chat template comes with a model file, and the file may be anybody's.

Jinja's sandbox protects the process that a template runs in, not its time and memory. Here every
iteration of a loop, call, filter, test, operator and piece of output goes through a budget
(template_budget.py): what it takes is computed before it runs, and what it made is counted as long
as the template can reach it. Filters give whole lists in place of generators, so that nothing is
made out of sight. Only those methods of Python's types can be called whose costs are known
(template_costs.py). Real templates stay far below the bounds.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import date, datetime, time
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError, TemplateRuntimeError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from outrider.models import template_costs as costs
from outrider.models.template_budget import MAX_JOB_S, MAX_STEPS, RenderBudget, bits, char_bytes
from outrider.models.tools import UnreadArguments

MAX_SOURCE_CHARS: Final = 1 << 18
MAX_TOKENS: Final = 12_000
"""Most words and signs of a template; compiling takes some 3 KB for each."""
MAX_OUTPUT_BYTES: Final = 12 << 20
"""Most memory of a rendering."""
_MAX_FORMAT_CHARS: Final = 1 << 12
_DATE_FORMAT: Final = re.compile(r"(?:[^%]|%[-_0^#]?[A-Za-rt-z%])*")
"""Without widths, which make a text as long as they say, and without %s, seconds that depend on the
time zone of the machine."""
_MAX_REASON_CHARS: Final = 1 << 12
_ASKING: Final = ("defined", "undefined", "default", "d")
"""Tests and filters for variables that may not be given."""

BROKEN: Final = (
    TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions that a faulty template may raise."""

_RUNNING: Final[ContextVar[RenderBudget]] = ContextVar("running")
"""The budget of the rendering under way in this thread."""
_ENDS_AT: Final[ContextVar[float | None]] = ContextVar("ends_at", default=None)
"""When the job under way in this thread has to end, by its environment's clock."""


class _Counted(Extension):
    """Refuses a template of too many words before it is parsed."""

    def filter_stream(self, stream: TokenStream) -> TokenStream:
        return TokenStream(self._counted(stream), stream.name, stream.filename)

    @staticmethod
    def _counted(stream: TokenStream) -> Iterator[Token]:
        for number, token in enumerate(stream):
            if number >= MAX_TOKENS:
                raise TemplateSyntaxError(f"it has more than {MAX_TOKENS} words", token.lineno)
            yield token


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

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

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
            extensions=[loopcontrols, _Generation, _Counted],
        )
        self._clock = clock
        filters = {**self.filters, "tojson": _to_json}
        self.filters = {name: self._bounded_filter(name, filters[name]) for name in costs.FILTERS}
        tests: dict[str, Any] = self.tests
        self.tests = {name: self._bounded_test(name, it) for name, it in tests.items()}
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = _refuse

    @contextlib.contextmanager
    def job(self) -> Iterator[None]:
        """All renderings inside share the time of one."""
        if _ENDS_AT.get() is not None:
            yield
            return
        token = _ENDS_AT.set(self._clock() + MAX_JOB_S)
        try:
            yield
        finally:
            _ENDS_AT.reset(token)

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
        try:
            return self._joined(template.generate(variables)), MAX_STEPS - budget.steps
        except BROKEN as error:
            _forget_frames(error)
            raise
        finally:
            budget.release()

    def _joined(self, rendering: Iterator[str]) -> str:
        budget, pieces, num_chars, width = self._budget, list[str](), 0, 1
        for piece in rendering:
            num_chars += len(piece)
            width = max(width, char_bytes(piece))
            if num_chars * width > MAX_OUTPUT_BYTES:
                raise TemplateRuntimeError(f"it makes more than {MAX_OUTPUT_BYTES >> 20} MiB")
            budget.hold(piece)
            budget.room(num_chars * width)
            budget.spend(1 + len(piece) // costs.STEP_CHARS)
            pieces.append(piece)
        return "".join(pieces)

    # What compiled templates call, by way of Jinja.

    def tick(self) -> str:
        """Called in every iteration of a loop."""
        self._budget.spend()
        return ""

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Called where a template fails. Jinja's own writes frames of the template into the
        traceback, which hold one another and all that was made."""
        if source is None:
            raise
        super().handle_exception(source)

    def concat(self, pieces: Iterable[str]) -> str:
        """The output of a macro, a call or a block."""
        return self.concatenated(*pieces)

    def concatenated(self, *parts: Any) -> str:
        """The operator `~`."""
        self._budget.need(self._budget.extent(*parts).text_bytes())
        made: str = self._made("".join(map(str, parts)))
        return made

    def collected(self, items: Any) -> Any:
        """A list, tuple or dictionary as it is written in the template, and a slice."""
        return self._made(items)

    def keyed(self, key: Any) -> Any:
        """A key of a dictionary that is written in the template."""
        costs.check_key(self._budget, key)
        return key

    def compared(self, left: Any, *rest: Any) -> Any:
        """Comparisons: an operator and a value by turns."""
        result: Any = True
        for operator, right in zip(rest[::2], rest[1::2], strict=True):
            costs.check_compared(self._budget, operator, left, right)
            result = result and costs.COMPARISONS[operator](left, right)
            left = right
        return result

    def getitem(self, obj: Any, argument: Any) -> Any:
        costs.check_key(self._budget, argument)
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return costs.is_known(obj, attr) and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls other than filters: computed before and measured after."""
        own = getattr(__obj, "__self__", None)
        if own is __self:
            return __obj(*args)
        budget = __self._budget
        budget.need(16 * (len(args) + len(kwargs)))
        if isinstance(own, str):
            args = tuple(__self._whole(it) for it in args)
            given = {name: it for name, it in kwargs.items() if not name.startswith("_")}
            costs.METHODS_OF_TEXT[__obj.__name__](budget, own, *args, **given)
        elif not isinstance(__obj, Macro):
            costs.check_call(budget, __obj, args)
        return __self._made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        costs.check_operator(self._budget, operator, left, right)
        return self._made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, which Jinja wraps for its own reasons."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__

        def formatted(*args: Any, **kwargs: Any) -> str:
            costs.check_format(self._budget, text, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return formatted

    # Accounting.

    @property
    def _budget(self) -> RenderBudget:
        return _RUNNING.get()

    def _begin(self) -> RenderBudget:
        ends_at = _ENDS_AT.get()
        budget = RenderBudget(
            self._clock, self._clock() + MAX_JOB_S if ends_at is None else ends_at
        )
        _RUNNING.set(budget)
        return budget

    def _made(self, value: Any) -> Any:
        if isinstance(value, int):
            costs.check_bits(bits(value))
        else:
            self._budget.hold(value)
        self._budget.spend()
        return value

    def _whole(self, value: Any) -> Any:
        """A list of an iterator's items, so that it can be measured; other values as they are."""
        return self._listed(value) if isinstance(value, Iterator) else value

    def _listed(self, items: Iterable[Any]) -> list[Any]:
        made = list[Any]()
        for item in items:
            self._budget.room(0, len(made) + 1)
            made.append(self._made(item))
        self._made(made)
        return made

    def _printed(self, value: Any) -> Any:
        return value if isinstance(value, str) else self._text(value)

    def _text(self, value: Any) -> str:
        """Any value as text, as filters see it."""
        if isinstance(value, str):
            return value
        self._budget.need(self._budget.extent(value).text_bytes())
        made: str = self._made(str(value))
        return made

    def _bounded_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        cost = costs.FILTERS[name]
        num_passed = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            value = args[num_passed]
            value = self._text(value) if name in costs.TEXTUAL else self._whole(value)
            further = [self._whole(it) for it in args[num_passed + 1 :]]
            self._budget.spend()
            cost(self._budget, value, *further, **kwargs)
            result = function(*args[:num_passed], value, *further, **kwargs)
            return (
                iter(self._listed(result)) if isinstance(result, Iterator) else self._made(result)
            )

        return bounded

    def _bounded_test(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        num_passed = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def bounded(*args: Any) -> Any:
            costs.check_test(self._budget, name, args[num_passed:])
            return function(*args)

        return bounded

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        return parsed


class _Bounds(NodeTransformer):
    """Adds a tick to every loop, and routes literals of containers, slices, comparisons and `~`
    through the environment."""

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

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:
            if not isinstance(pair.key, nodes.Const):
                pair.key = _own("keyed", [pair.key])
        return _own("collected", [node])

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _own("collected", [node]) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        is_slice = isinstance(node.arg, nodes.Slice) and node.ctx == "load"
        return _own("collected", [node]) if is_slice else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        rest = [part for it in node.ops for part in (nodes.Const(it.op), it.expr)]
        return _own("compared", [node.expr, *rest])

    def visit_ScopedEvalContextModifier(self, node: nodes.Node) -> nodes.Node:
        raise TemplateSyntaxError("there is no autoescape", node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _own("concatenated", node.nodes)


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what a template had made when it failed: frames hold it, and an error them."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


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
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class TemplateRefusal(TemplateError):
    """A template's own `raise_exception`: it is whole, and takes no such chat."""


def _refuse(reason: str) -> NoReturn:
    raise TemplateRefusal(str(reason)[:_MAX_REASON_CHARS])


def date_formatter(day: date) -> Callable[[str], str]:
    """The `strftime_now` of `transformers` for the beginning of a day."""
    begins = datetime.combine(day, time())

    def strftime_now(form: str) -> str:
        if len(form) > _MAX_FORMAT_CHARS or not _DATE_FORMAT.fullmatch(form):
            raise TemplateRuntimeError("a format of a date is too long, or not known")
        return begins.strftime(form)

    return strftime_now
