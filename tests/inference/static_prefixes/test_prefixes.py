"""What operators register, as ids, and whose it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outrider.config import load
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import ConfigError, InvalidRequestError
from outrider.models.chat import Message
from outrider.static_prefixes import MAX_PREFIXES, PrefixMessage, StaticPrefixConfig
from services.inference.config import InferenceConfig
from services.inference.scheduler.limits import context_limit
from services.inference.static_prefixes.prefixes import StaticPrefix, StaticPrefixes, rendered
from services.inference.streaming.wire import MAX_SALT_BYTES

INFO = FakeEngine(FakeOptions(num_blocks=64, max_context_tokens=256)).info
BLOCK = INFO.block_tokens


class Letters:
    """`<role>text` for each message, and `<a` before the reply; refuses tools."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        if any(message.role == "tool" for message in messages):
            raise InvalidRequestError("no tools")
        return [ord(c) for c in "".join(f"<{m.role[0]}>{m.content}" for m in messages) + "<a>"]


def text_of(config: StaticPrefixConfig) -> str:
    (prefix,) = rendered([config], "m", Letters())
    return "".join(map(chr, prefix.ids))


def config_of(**changes: Any) -> StaticPrefixConfig:
    return StaticPrefixConfig(**({"name": "p", "tenants": ("*",), "system": "Be kind."} | changes))


def test_the_prefix_is_what_chats_have_in_common() -> None:
    assert text_of(config_of()) == "<s>Be kind.<u>"
    shots = (PrefixMessage("user", "2+2"), PrefixMessage("assistant", "4"))
    assert text_of(config_of(system="", messages=shots)) == "<u>2+2<a>4<u>"
    document = (PrefixMessage("user", "Once upon a time"),)
    assert text_of(config_of(system="", messages=document)) == "<u>Once upon a time"


def test_only_those_of_the_model() -> None:
    configs = [config_of(), config_of(name="q", model="m"), config_of(name="r", model="other")]
    assert [prefix.name for prefix in rendered(configs, "m", Letters())] == ["p", "q"]


def test_what_no_chat_begins_with_is_refused() -> None:
    config = config_of(system="", messages=(PrefixMessage("tool", "x"),))
    with pytest.raises(ConfigError, match=r"prefix p is not what a chat .* no tools"):
        rendered([config], "m", Letters())


def prefix(num_tokens: int, name: str = "p", tenants: tuple[str, ...] = ("*",)) -> StaticPrefix:
    ids = tuple(n % 50 + 1 for n in range(num_tokens))
    return StaticPrefix(name, tenants, ids)


def statics(*prefixes: StaticPrefix, max_share: float = 0.5) -> StaticPrefixes:
    return StaticPrefixes(prefixes, INFO, max_share=max_share, context_limit=context_limit(INFO))


def test_tenants_find_their_own() -> None:
    ours, theirs, everybodys = (
        prefix(20, "a", ("acme", "ajax")),
        prefix(20, "b", ("initech",)),
        prefix(20, "c"),
    )
    known = statics(ours, theirs, everybodys)
    assert set(known.salts_of("acme")) == {ours.salt, everybodys.salt}
    assert set(known.salts_of("initech")) == {theirs.salt, everybodys.salt}
    assert set(known.salts_of("")) == {everybodys.salt}
    assert prefix(9, tenants=("ajax", "acme")).salt == ours.salt, "in any order"
    assert all(len(one.salt) > MAX_SALT_BYTES for one in known.prefixes), "no session's salt"


def test_what_does_not_fit_is_refused() -> None:
    statics(prefix(8 * BLOCK), max_share=8 / 64)
    # Blocks that begin alike count once.
    statics(prefix(8 * BLOCK), prefix(8 * BLOCK, "q"), max_share=8 / 64)
    with pytest.raises(ConfigError, match=r"need 9 blocks .* may have 8 of its 64"):
        statics(prefix(8 * BLOCK + 1), max_share=8 / 64)
    with pytest.raises(ConfigError, match="raise kv_bytes or prefix_share"):
        many = [prefix(8 * BLOCK, f"p{n}", (f"t{n}",)) for n in range(8)]
        statics(*many, max_share=0.99)
    with pytest.raises(ConfigError, match="shorten it, or raise max_context_tokens"):
        statics(prefix(context_limit(INFO)))


@pytest.mark.parametrize(
    ("table", "wrong"),
    [
        ({"tenants": []}, r"name those whose chats may use it, or \[\"\*\"\]"),
        ({"messages": [{"role": "user", "content": "x"}]}, "either system or messages"),
        ({"system": ""}, "either system or messages"),
        ({"name": ""}, "a prefix's name"),
    ],
)
def test_settings_that_cannot_be_right(table: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        config_of(**{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})


def test_bounds_and_names() -> None:
    with pytest.raises(ConfigError, match=f"at most {MAX_PREFIXES}"):
        InferenceConfig(prefixes=tuple(config_of(name=f"p{n}") for n in range(MAX_PREFIXES + 1)))
    with pytest.raises(ConfigError, match="prefix p is defined twice"):
        InferenceConfig(prefixes=(config_of(), config_of(system="other")))
    with pytest.raises(ConfigError, match="prefix_share"):
        InferenceConfig(prefix_share=1.0)


def test_the_file_form(tmp_path: Any) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text(
        '[inference]\nprefix_share = 0.1\n[[inference.prefixes]]\nname = "shots"\n'
        'tenants = ["acme"]\nmessages = [{ role = "user", content = "2+2" }]\n'
    )
    config = load(InferenceConfig, "inference", file=file, environ={})
    (found,) = config.prefixes
    assert found.all_messages == (PrefixMessage("user", "2+2"),) and found.tenants == ("acme",)
