"""Compose chat templates at random, and report each that takes too much.

    python -m tools.fuzz_templates [--minutes N | --templates N] [--seed S]

A template is composed of everything that Jinja's grammar has: filters, methods, operators, tests,
slices, formats, loops, macros, namespaces, blocks, recursion. A child process reads, checks and
renders it as a model's template; it is over the bounds if reading or rendering takes more than 2 s
of the processor or 64 MB, if it fails with an error that is no answer, or if the child dies. Each
such template is printed in its smallest form. Exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from outrider.errors import OutriderError
from outrider.models.chat import Message
from outrider.models.chat_template import ChatTemplate

MAX_CPU_S: Final = 2.0
MAX_BYTES: Final = 64 << 20
_DEADLY_CPU_S: Final = 20.0
"""Of one template in the child, which then dies."""
_TRACING: Final = 8.0
"""How many times as long a rendering takes whose allocations are traced, about."""
_MAX_DEPTH: Final = 4
_MAX_TRIES: Final = 80
"""Smaller forms tried of one finding."""

Node: TypeAlias = "str | tuple[Node, ...]"
"""A piece of source, or pieces one after the other."""

_MESSAGES: Final = (
    Message("system", "Be brief. <s>"),
    Message("user", "hello \u00e9\U0001f600\n" * 40),
    Message("assistant", "a, b, c"),
    Message("user", "x" * 4000),
)
_SIZES: Final = (
    "0",
    "1",
    "2",
    "3",
    "9",
    "64",
    "999",
    "999",
    "4096",
    "20000",
    "99999",
    "1000000",
    "-1",
)
_TEXTS: Final = ("'a'", "'ab '", "'\\n'", "'\u00fc'", "'\U0001f600'", "'<s>'", "'<&\"'", "'\\x00'")
_LISTS: Final = (
    "[0]",
    "['a']",
    "[[1] * 99]",
    "(1, 2)",
    "[a]",
    "[{'a': b}]",
    "[ns.x]",
    "[1.5, none]",
)
_SLICES: Final = ("[1:]", "[::-1]", "[:99]", "[1:][1:]", "[::2]")
_ARGUMENTS: Final = {
    **dict.fromkeys(("batch", "slice", "center", "ljust", "zfill"), ("n", "nt")),
    **dict.fromkeys(("replace",), ("tt",)),
    **dict.fromkeys(("indent", "truncate", "expandtabs", "round"), ("", "n", "nv")),
    **dict.fromkeys(("trim", "strip", "split", "rsplit", "join"), ("", "t")),
    **dict.fromkeys(("groupby", "attr"), ("n",)),
    **dict.fromkeys(("in", "eq"), ("v",)),
    **dict.fromkeys(("find", "rfind", "count", "index", "partition", "rpartition"), ("t",)),
    **dict.fromkeys(("startswith", "endswith", "removeprefix", "removesuffix"), ("t",)),
    **dict.fromkeys(("default", "d", "format", "tojson", "int", "float"), ("", "v")),
}
"""Kinds of arguments: numbers, texts, any values."""
_FORMATS: Final = (
    "'%s%s'",
    "'%9999d'",
    "'%r'",
    "'{0}{0}'",
    "'{!r:>999}'",
    "'{}'",
    "'%(a)s'",
    "'%x'",
)
_OPERATORS: Final = ("+", "-", "*", "/", "//", "%", "**", "~")
_COMPARISONS: Final = ("==", "!=", "<", ">=", "in", "not in")
_TEXT_METHODS: Final = (
    *(
        "upper",
        "lower",
        "title",
        "capitalize",
        "swapcase",
        "casefold",
        "strip",
        "lstrip",
        "replace",
    ),
    *(
        "center",
        "ljust",
        "zfill",
        "expandtabs",
        "removeprefix",
        "removesuffix",
        "striptags",
        "unescape",
    ),
)
_SPLITS: Final = ("split", "rsplit", "splitlines", "partition", "rpartition", "split", "encode")
_SEARCHES: Final = (
    *("find", "rfind", "count", "index", "startswith", "endswith", "isupper", "isprintable"),
)
_TEXT_FILTERS: Final = (
    *("capitalize", "center", "e", "escape", "forceescape", "indent", "lower", "replace", "safe"),
    *("string", "title", "tojson", "trim", "truncate", "upper", "urlencode", "format", "reverse"),
)
_LIST_FILTERS: Final = (
    *(
        "batch",
        "slice",
        "list",
        "map",
        "map",
        "map",
        "sort",
        "unique",
        "reverse",
        "select",
        "reject",
    ),
    *("groupby", "default"),
)
_LIST_TO_TEXT: Final = ("join", "tojson", "string", "first", "last", "min", "max")
_FILTERS: Final = (
    *("abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e"),
    *("escape", "filesizeformat", "first", "float", "forceescape", "format", "groupby", "indent"),
    *("int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject"),
    *("rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort"),
    *("string", "title", "tojson", "trim", "truncate", "unique", "upper", "urlencode", "wordcount"),
)
_TESTS: Final = (
    *("odd", "even", "divisibleby(3)", "defined", "none", "string", "mapping", "sequence"),
    *("iterable", "lower", "upper", "in([1, 'a'])", "eq(a)", "sameas(a)", "number", "callable"),
)
_KEYWORDS: Final = ("attribute", "indent", "default", "case_sensitive", "reverse", "fill_with")


class Composer:
    """Templates composed by one generator of random numbers."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def template(self) -> Node:
        """A template that begins with values to work with."""
        rng = self._rng
        head: list[Node] = [
            "{% set ns = namespace(x='a', y='a') %}{% set a = 'a' %}{% set b = [1, 'a'] %}",
            ("{% set ns.x = ", self._expression(2), " %}"),
        ]
        for name in ("a", "b"):
            head += ["{% set " + name + " = ", self._expression(2), " %}"]
        body = [self._statement(0) for _ in range(rng.randint(1, 4))]
        return (
            "".join(["{% macro f(n, m=9) %}", "{{ n }}{{ m }}{% endmacro %}"]),
            tuple(head),
            tuple(body),
        )

    def _statement(self, depth: int) -> Node:
        if depth >= _MAX_DEPTH:
            return ("{{ ", self._expression(depth), " }}")
        kinds: tuple[Callable[[int], Node], ...] = (
            self._printed,
            self._printed,
            self._set,
            self._set,
            self._grown,
            self._grown,
            self._loop,
            self._loop,
            self._branch,
            self._macro,
            self._block,
            self._recursion,
        )
        return self._rng.choice(kinds)(depth)

    def _body(self, depth: int) -> Node:
        return tuple(self._statement(depth + 1) for _ in range(self._rng.randint(1, 3)))

    def _printed(self, depth: int) -> Node:
        return ("{{ ", self._expression(depth), " }}")

    def _set(self, depth: int) -> Node:
        name = self._rng.choice(("a", "b", "m", "ns.x", "ns.y"))
        return ("{% set " + name + " = ", self._expression(depth), " %}")

    def _grown(self, depth: int) -> Node:
        """A value that is made of itself again and again."""
        name = self._rng.choice(("ns.x", "ns.y"))
        form = self._rng.choice(
            (
                "{0} ~ {0}",
                "{0} + {0}",
                "[{0}, {0}]",
                "({0}, {0})",
                "{{'a': {0}, 'b': {0}}}",
                "[{0}] * 9",
            )
        ).format(name)
        chain = self._filters(depth) if self._rng.random() < 0.5 else ""
        count = self._rng.choice(("9", "24", "99", "999"))
        return (
            "{% for i in range(" + count + ") %}{% set " + name + " = (" + form + ")",
            chain,
            " %}",
            self._statement(depth + 2),
            "{% endfor %}",
        )

    def _loop(self, depth: int) -> Node:
        test = (" if ", self._expression(depth + 2)) if self._rng.random() < 0.3 else ""
        return (
            "{% for m in ",
            self._expression(depth + 1),
            test,
            " %}",
            self._body(depth),
            "{% endfor %}",
        )

    def _branch(self, depth: int) -> Node:
        return (
            "{% if ",
            self._expression(depth + 1),
            " %}",
            self._body(depth),
            "{% else %}",
            self._body(depth),
            "{% endif %}",
        )

    def _macro(self, depth: int) -> Node:
        name = self._rng.choice("gh")
        call = self._rng.choice(("f(n)", "n ~ m", "n", "varargs", f"{name}(n) if n is none"))
        return (
            "{% macro " + name + "(n, m=1) %}{{ " + call + " }}",
            self._body(depth),
            "{% endmacro %}{{ " + name + "(",
            self._expression(depth + 2),
            ") }}",
        )

    def _block(self, depth: int) -> Node:
        opened, closed = self._rng.choice(
            (
                ("{% set b %}", "{% endset %}"),
                ("{% filter upper %}", "{% endfilter %}"),
                ("{% call f(a) %}", "{% endcall %}"),
                ("{% generation %}", "{% endgeneration %}"),
                ("{% filter e %}", "{% endfilter %}"),
                ("{% with a = b %}", "{% endwith %}"),
            )
        )
        return (opened, self._body(depth), closed)

    def _recursion(self, depth: int) -> Node:
        return (
            "{% for m in ",
            self._expression(depth + 2),
            " recursive %}",
            self._statement(depth + 2),
            "{{ loop(",
            self._expression(depth + 2),
            ") if loop.depth < 9 }}{% endfor %}",
        )

    def _expression(self, depth: int) -> Node:
        """A value of any kind."""
        kinds = (
            self._text,
            self._text,
            self._list,
            self._list,
            self._list,
            self._dict,
            self._number,
        )
        return self._rng.choice(kinds)(depth)

    def _text(self, depth: int) -> Node:
        rng, deeper = self._rng, depth + 1
        if depth >= _MAX_DEPTH or rng.random() < 0.1:
            return rng.choice((*_TEXTS, "ns.y", "messages[1].content", "bos_token"))
        forms: tuple[Callable[[], Node], ...] = (
            lambda: ("(" + rng.choice(_TEXTS) + " * ", self._number(deeper), ")"),
            lambda: ("(", self._text(deeper), rng.choice((" * 9", " * 999", " ~ b")), ")"),
            lambda: ("(", self._text(deeper), rng.choice((" ~ ", " + ")), self._text(deeper), ")"),
            lambda: ("(", self._text(deeper), " | ", self._call(_TEXT_FILTERS, deeper), ")"),
            lambda: ("(", self._text(deeper), ").", self._call(_TEXT_METHODS, deeper)),
            lambda: ("(", self._list(deeper), " | ", self._call(_LIST_TO_TEXT, deeper), ")"),
            lambda: ("(", self._dict(deeper), " | ", self._call(("tojson", "string"), deeper), ")"),
            lambda: ("(", self._text(deeper), ").join(", self._list(deeper), " | map('string'))"),
            lambda: ("(", self._text(deeper), ")", rng.choice(_SLICES)),
            lambda: ("((", self._format(), ") % ", self._expression(deeper), ")"),
            lambda: ("(", self._format(), ").format(", self._expression(deeper), ", a=a)"),
            lambda: ("f(", self._expression(deeper), ")"),
            lambda: ("(", self._list(deeper), ")", rng.choice(("[0]", " | first", " | last"))),
        )
        return rng.choice(forms)()

    def _list(self, depth: int) -> Node:
        rng, deeper = self._rng, depth + 1
        if depth >= _MAX_DEPTH or rng.random() < 0.1:
            return rng.choice((*_LISTS, "messages", "range(999)"))
        forms: tuple[Callable[[], Node], ...] = (
            lambda: ("(" + rng.choice(_LISTS) + " * ", self._number(deeper), ")"),
            lambda: ("([", self._expression(deeper), "] * ", self._number(deeper), ")"),
            lambda: ("[", self._expression(deeper), ", ", self._expression(deeper), "]"),
            lambda: ("(", self._list(deeper), " | list + ", self._list(deeper), " | list)"),
            lambda: ("(", self._list(deeper), self._filters(deeper), ")"),
            lambda: ("(", self._list(deeper), self._filters(deeper), ")"),
            lambda: ("(", self._text(deeper), self._filters(deeper), ")"),
            lambda: ("(", self._text(deeper), ").", self._call(_SPLITS, deeper)),
            lambda: ("(", self._list(deeper), " | list)", rng.choice(_SLICES)),
            lambda: ("(", self._dict(deeper), rng.choice((").items()", ").values()", " | items)"))),
            lambda: ("range(", self._number(deeper), ")"),
        )
        return rng.choice(forms)()

    def _dict(self, depth: int) -> Node:
        rng, deeper = self._rng, depth + 1
        if depth >= _MAX_DEPTH or rng.random() < 0.3:
            return rng.choice(("{}", "{'a': ns.x}", "messages[0]", "{1: 'a', 2: b}"))
        key = rng.choice(("'a'", "1", "a", "(1, 2)", "ns.y"))
        forms: tuple[Callable[[], Node], ...] = (
            lambda: ("{" + key + ": ", self._expression(deeper), ", 'b': ns.x}"),
            lambda: ("dict(", self._list(deeper), " | batch(2, 1))"),
            lambda: ("dict(a=", self._expression(deeper), ")"),
            lambda: ("namespace(a=", self._expression(deeper), ")"),
        )
        return rng.choice(forms)()

    def _number(self, depth: int) -> Node:
        rng, deeper = self._rng, depth + 1
        if depth >= _MAX_DEPTH or rng.random() < 0.6:
            return rng.choice(_SIZES)
        forms: tuple[Callable[[], Node], ...] = (
            lambda: (
                "(",
                self._number(deeper),
                f" {rng.choice(_OPERATORS)} ",
                self._number(deeper),
                ")",
            ),
            lambda: ("(", self._expression(deeper), " | length)"),
            lambda: ("(", self._text(deeper), " | ", self._call(("int", "float"), deeper), ")"),
            lambda: ("(", self._number(deeper), " | ", self._call(("round", "abs"), deeper), ")"),
            lambda: ("(", self._text(deeper), ").", self._call(_SEARCHES, deeper)),
            lambda: (
                "(",
                self._expression(deeper),
                f" {rng.choice(_COMPARISONS)} ",
                self._expression(deeper),
                ")",
            ),
            lambda: ("(", self._expression(deeper), " is " + rng.choice(_TESTS), ")"),
        )
        return rng.choice(forms)()

    def _format(self) -> str:
        return self._rng.choice(_FORMATS) + self._rng.choice(("", " * 9", " * 400"))

    def _filters(self, depth: int) -> Node:
        return tuple(self._filter(depth) for _ in range(self._rng.randint(1, 4)))

    def _filter(self, depth: int) -> Node:
        """A filter that makes a list of a list, or now and then any other."""
        rng = self._rng
        if rng.random() < 0.04:
            return (" | ", self._call(_FILTERS, depth))
        name = rng.choice(_LIST_FILTERS)
        if name == "map":
            inner = rng.choice(
                (*_TEXT_FILTERS, "list", "batch", "slice", "sort", "length", "first")
            )
            return (" | map('" + inner + "'", self._given(inner, depth), ")")
        if name in ("select", "reject"):
            test = rng.choice(("string", "number", "lower", "in", "eq"))
            return (" | " + name + "('" + test + "'", self._given(test, depth), ")")
        return (" | ", self._call((name,), depth))

    def _call(self, names: Sequence[str], depth: int) -> Node:
        """One of these with arguments: mostly such as it takes."""
        rng = self._rng
        name = rng.choice(names)
        if rng.random() < 0.04:
            return (name + "(", self._arguments(depth), ")")
        return (name + "(", self._given(name, depth, ""), ")")

    def _given(self, name: str, depth: int, before: str = ", ") -> Node:
        """Arguments such as a filter, a test or a method of this name takes."""
        kinds: dict[str, Callable[[int], Node]] = {
            "n": self._number,
            "t": self._text,
            "v": self._expression,
        }
        made: list[Node] = []
        for kind in self._rng.choice(_ARGUMENTS.get(name, ("",))):
            made += [", " if made else before, kinds[kind](depth)]
        return tuple(made)

    def _arguments(self, depth: int, before: str = "") -> Node:
        made: list[Node] = []
        for number in range(self._rng.randint(0, 2)):
            made += [", " if number else before, self._expression(depth + 1)]
        if self._rng.random() < 0.04:
            made += [", " if made else before, self._rng.choice(_KEYWORDS) + "=1"]
        return tuple(made)


def source_of(node: Node) -> str:
    return node if isinstance(node, str) else "".join(map(source_of, node))


def smaller(node: Node) -> Iterator[Node]:
    """Forms of a template with one piece less, or with a simple value in its place; the greatest
    steps first."""
    queue: list[tuple[Node, Callable[[Node], Node]]] = [(node, lambda it: it)]
    while queue:
        one, around = queue.pop(0)
        if isinstance(one, str):
            continue
        for other in ("", "1", "'a'", *one):
            if len(source_of(other)) < len(source_of(one)):
                yield around(other)
        for at, part in enumerate(one):
            queue.append((part, _within(one, at, around)))


def _within(
    whole: tuple[Node, ...], at: int, around: Callable[[Node], Node]
) -> Callable[[Node], Node]:
    return lambda part: around((*whole[:at], part, *whole[at + 1 :]))


@dataclass(frozen=True, slots=True)
class Measured:
    """What one template took."""

    read_s: float
    render_s: float
    """Processor time."""
    peak_bytes: int
    outcome: str
    """"ok", the beginning of a refusal, or "broken" for what is no answer."""

    @property
    def fault(self) -> str:
        """What is over the bounds; "": nothing."""
        if max(self.read_s, self.render_s) > MAX_CPU_S:
            return f"{max(self.read_s, self.render_s):.1f} s"
        if self.peak_bytes > MAX_BYTES:
            return f"{self.peak_bytes / (1 << 20):.0f} MiB"
        return self.outcome if self.outcome.startswith("broken") else ""


def _attempt(source: str, clock: Callable[[], float]) -> tuple[float, float, str]:
    """Processor time of reading and of rendering, and the outcome."""
    begun = read = time.process_time()
    try:
        template = ChatTemplate(source, ["<s>", "</s>"], {"bos_token": "<s>"}, clock)
        read = time.process_time()
        template.segments(_MESSAGES)
        outcome = "ok"
    except OutriderError as error:
        outcome = str(error)[:200]
    except Exception as error:
        outcome = f"broken: {type(error).__name__}: {str(error)[:200]}"
    ended = time.process_time()
    read = read if read > begun else ended
    return read - begun, ended - read, outcome


def measured(source: str) -> Measured:
    """One template, once for its time and once for its memory."""
    read_s, render_s, outcome = _attempt(source, time.thread_time)
    tracemalloc.start()
    try:
        _attempt(source, lambda: time.thread_time() / _TRACING)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return Measured(read_s, render_s, peak, outcome)


def _serve() -> None:
    """The child: a template a line in, what it took a line out."""
    warnings.simplefilter("ignore")  # of Python, about constants that are called
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, _DEADLY_CPU_S)
        result = measured(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        took = (result.read_s, result.render_s, result.peak_bytes, result.outcome)
        print(json.dumps(took), flush=True)


class Child:
    """A process that renders; begun anew when it has died."""

    def __init__(self) -> None:
        self._process = self._begun()

    def measured(self, source: str) -> Measured:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(source) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if line:
            return Measured(*json.loads(line))
        code = self._process.wait()
        self._process = self._begun()
        return Measured(0, 0, 0, f"broken: the process ended with {code}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    @staticmethod
    def _begun() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tools.fuzz_templates", "--child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def smallest(node: Node, is_faulty: Callable[[str], bool]) -> str:
    """The smallest form found that is still faulty."""
    tries = _MAX_TRIES
    is_smaller = True
    while is_smaller and tries > 0:
        is_smaller = False
        for form in smaller(node):
            tries -= 1
            if tries < 0:
                break
            if is_faulty(source_of(form)):
                node, is_smaller = form, True
                break
    return source_of(node)


def main() -> int:
    """Exits with 1 if a template is over the bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--templates", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _serve()
        return 0
    composer = Composer(random.Random(options.seed))
    ends_at = time.monotonic() + 60 * options.minutes
    child, outcomes, worst_s, worst_bytes, num_faults = Child(), Counter[str](), 0.0, 0, 0
    try:
        while time.monotonic() < ends_at and outcomes.total() < options.templates:
            node = composer.template()
            result = child.measured(source_of(node))
            outcomes["ok" if result.outcome == "ok" else "refused"] += 1
            worst_s = max(worst_s, result.read_s, result.render_s)
            worst_bytes = max(worst_bytes, result.peak_bytes)
            if result.fault:
                num_faults += 1
                found = smallest(node, lambda source: bool(child.measured(source).fault))
                print(f"{result.fault}: {found}", flush=True)
    finally:
        child.close()
    print(
        f"seed {options.seed}: {outcomes.total()} templates, {outcomes['ok']} rendered, "
        f"{num_faults} over the bounds; at most {worst_s:.2f} s, {worst_bytes / (1 << 20):.0f} MiB"
    )
    return 1 if num_faults else 0


if __name__ == "__main__":
    sys.exit(main())
