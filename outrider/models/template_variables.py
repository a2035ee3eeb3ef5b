"""Variables that a client gives to the chat template, such as `enable_thinking`. Pure.

They travel as one JSON text, an object by the variables' names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from datetime import date
from typing import Any, Final

from outrider.errors import InvalidRequestError
from outrider.models.chat import check_text

MAX_VARIABLES: Final = 32
"""Most variables of one chat."""
MAX_VARIABLES_CHARS: Final = 1 << 14
"""Most characters of their JSON text."""
MAX_DEPTH: Final = 16
"""Objects and lists within one another."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
CONTINUES: Final = "continue_final_message"
"""Variable, true or false, that no template reads: whether the reply continues the last message,
which is the assistant's, instead of answering it."""
RESERVED: Final = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", CONTINUES}
    | {"bos_token", "eos_token", "pad_token", "unk_token"}
)
"""Variables that templates do not take from clients."""
DATE: Final = "strftime_now"
"""A function of templates that formats today's date. Its variable is that date, YYYY-MM-DD, which
does not change while a chat lasts."""


def check_variables(given: Mapping[str, Any] | str) -> str:
    """The JSON text of variables; "" for none. `given` may be such a text. Raises
    InvalidRequestError for what is no object, and for too many or too long ones."""
    try:
        if isinstance(given, str):
            if len(given) > MAX_VARIABLES_CHARS:
                raise _too_long(len(given))
            given = json.loads(given) if given else {}
        if not isinstance(given, Mapping):
            raise InvalidRequestError("variables of a chat template are an object by their names")
        if not given:
            return ""
        if len(given) > MAX_VARIABLES:
            raise InvalidRequestError(f"a chat template takes at most {MAX_VARIABLES} variables")
        for name, value in given.items():
            if name == CONTINUES and isinstance(value, bool):
                continue
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name in RESERVED:
                raise InvalidRequestError(
                    f"{str(name)[:64]!r} is no variable that a client may give a chat template"
                )
            _check_depth(name, value, MAX_DEPTH)
            if name == DATE:
                read_date(value)
        text = json.dumps(given, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequestError(f"variables of a chat template are JSON: {error}") from None
    check_text(text)
    if len(text) > MAX_VARIABLES_CHARS:
        raise _too_long(len(text))
    return text


def read_variables(text: str) -> dict[str, Any]:
    """The variables in a text that `check_variables` returned."""
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def dated(variables: str, known: Container[str], today: str) -> str:
    """The variables with this date, if the template, whose variables are `known`, shows one and
    none is given."""
    given = read_variables(variables)
    if DATE not in known or DATE in given:
        return variables
    return check_variables(given | {DATE: today})


def continues(variables: str) -> bool:
    """Whether the reply continues the last message."""
    return bool(variables) and bool(read_variables(variables).get(CONTINUES))


def date_in(variables: str) -> str:
    """The date among the variables; "" for none."""
    return str(read_variables(variables).get(DATE, ""))


def read_date(text: object) -> date:
    """A date written YYYY-MM-DD. Raises InvalidRequestError."""
    try:
        found = date.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        found = None
    if found is not None and found.isoformat() == text:
        return found
    raise InvalidRequestError(f"the date {str(text)[:32]!r} is not written YYYY-MM-DD")


def unknown_variable(name: str, known: frozenset[str]) -> InvalidRequestError:
    """The error for a variable that the model's template does not have."""
    has = f"it has {', '.join(sorted(known))}" if known else "it has none"
    return InvalidRequestError(
        f"chat_template_kwargs: the model's chat template has no variable {name!r}; {has}",
        metadata={"param": f"chat_template_kwargs.{name}"},
    )


def _check_depth(name: str, value: Any, left: int) -> None:
    if not left:
        raise InvalidRequestError(f"the variable {name} is nested more than {MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            _check_depth(name, inner, left - 1)


def _too_long(num_chars: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"the variables of the chat template have {num_chars} characters; send at most "
        f"{MAX_VARIABLES_CHARS}"
    )
