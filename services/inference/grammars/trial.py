"""A grammar is compiled in a process of its own first, if its cost cannot be told from its text.

llguidance counts its steps when it compiles, but not everywhere: texts that many expressions match
at once (`&` in Lark, `allOf` in a schema) take time exponential in their number, patterns of
properties the square of it, and what counted repetitions force takes memory by its length. The
process has hard limits and is killed by them; what it compiled is then compiled again where it is
used. It takes some 80 ms, so grammars without any of these do without it.

    python -m services.inference.grammars.trial < GRAMMAR
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from outrider.children import python_module
from outrider.errors import InvalidSamplingError
from outrider.sampling.grammar import Grammar, GrammarKind

LIMITS: Final = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,  # about 20 ms
    step_lexer_fuel=50_000,  # about 4 ms for a mask
    step_max_items=20_000,  # about 1 ms for a mask
    max_lexer_states=20_000,  # 1 to 2 KiB each, for all replies that share the compiled grammar
    max_grammar_size=100_000,
    verbose_errors=False,  # they would show the grammar
)
MAX_CPU_S: Final = 2
MAX_BYTES: Final = 64 << 20
_MAX_PLAIN_CHARS: Final = 8192
_COUNT: Final = re.compile(r"\{\s*,?\s*\d")
_GREAT_COUNT: Final = re.compile(r"\{[^{}]*\d{4}")
_NO_ROOM: Final = 9
"""Exit code if there is too little memory."""
_ANNOTATIONS: Final = frozenset(
    {"$ref", "$defs", "definitions", "$schema", "title", "description", "default", "examples"}
)


def check_cost(grammar: Grammar, text: str) -> None:
    """Raises InvalidSamplingError for a grammar that takes more than MAX_CPU_S or MAX_BYTES.
    `text`: the grammar in llguidance's form. Blocks for as long as the process takes."""
    if not needs_trial(grammar):
        return
    done = subprocess.run(
        python_module(__name__),
        input=text.encode(errors="surrogatepass"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode < 0 or done.returncode == _NO_ROOM:
        raise InvalidSamplingError(
            f"the grammar takes more than {MAX_CPU_S} s or {MAX_BYTES >> 20} MiB to compile; "
            "simplify it, above all repetitions, allOf and patterns"
        )


def needs_trial(grammar: Grammar) -> bool:
    """Whether a grammar has what may cost more than its text tells."""
    text = grammar.text
    if len(text) > _MAX_PLAIN_CHARS or _GREAT_COUNT.search(text) or len(_COUNT.findall(text)) > 2:
        return True
    if grammar.kind is GrammarKind.LARK:
        return "&" in text or "~" in text or "%json" in text
    return grammar.kind is GrammarKind.JSON_SCHEMA and _combines(json.loads(text))


def _combines(schema: Any) -> bool:
    """Whether several parts of a schema hold for one value."""
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if "allOf" in one or "patternProperties" in one:
                return True
            if "$ref" in one and not one.keys() <= _ANNOTATIONS:
                return True
            left += one.values()
        elif isinstance(one, list):
            left += one
    return False


def main() -> None:
    """Compiles what stands in the input. Ended by a signal, or with _NO_ROOM, where that is not
    possible within the limits; faults of the grammar are found where it is used."""
    text = sys.stdin.read()
    tokenizer = LLTokenizer("byte")
    if sys.platform == "linux":  # others do not keep to it
        num_pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = num_pages * resource.getpagesize() + MAX_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        matcher = LLMatcher(tokenizer, text, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
    except MemoryError:
        sys.exit(_NO_ROOM)


if __name__ == "__main__":
    main()
