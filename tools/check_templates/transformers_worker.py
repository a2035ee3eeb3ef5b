"""Renders chats with transformers' own code, in an environment that has it:

    python transformers_worker.py < asked.json > rendered.json

`asked` has "day" (YYYY-MM-DD), "variables", "templates" (sources) and "chats" (each with "messages"
and "tools"). For each template a list of [text, error], one per chat.
"""

from __future__ import annotations

import datetime
import json
import sys
from typing import Any

import transformers.utils.chat_template_utils as chats


def rendered(asked: dict[str, Any], template: str, chat: dict[str, Any]) -> tuple[str, str]:
    """The text and "", or "" and why not."""
    try:
        texts, _ = chats.render_jinja_template(
            conversations=[chat["messages"]],
            tools=chat["tools"] or None,
            chat_template=template,
            add_generation_prompt=True,
            **asked["variables"],
        )
    except Exception as error:  # templates fail in all ways
        return "", f"{type(error).__name__}: {error}"
    return texts[0], ""


def main() -> None:
    asked = json.load(sys.stdin)
    day = datetime.datetime.fromisoformat(asked["day"])

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Clock:
            return cls(day.year, day.month, day.day)

    chats.datetime = Clock
    found = [[rendered(asked, it, chat) for chat in asked["chats"]] for it in asked["templates"]]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
