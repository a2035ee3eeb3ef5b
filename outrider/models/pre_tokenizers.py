"""How texts are cut before byte-level BPE, by the names that GGUF files have for it. Pure.

GGUF files say `tokenizer.ggml.pre`, and llama.cpp's `llama-vocab.cpp` what each name means. The
patterns here are those of the models' own tokenizer.json where it has one: llama.cpp writes some of
them in other words, since its engine knows fewer classes of characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from outrider.errors import ConfigError

GPT2_REGEX: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""As the last of several steps it is the one that is built into Hugging Face's ByteLevel."""
DIGITS: Final = "Digits"
"""A step of its own in Hugging Face's library: every numeric character is a piece. Its table of
characters is newer than that of the patterns' `\\p{N}`."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps that a text goes through before byte-level BPE."""

    splits: tuple[str, ...]
    """Oniguruma patterns, or DIGITS. Each cuts the pieces of those before it further: a match is a
    piece, and so is what lies between two. BPE sees the last pieces one by one."""
    nfc: bool = False
    """Unicode normalization form C comes first."""
    ignore_merges: bool = False
    """A piece that is a token as a whole is not built by merges."""


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """What a name stands for."""

    pipeline: Pipeline
    adds_bos: bool = False
    """Prompts that are no chats begin with the begin token, unless the file says otherwise."""


_ONE: Final = r"\p{N}"
_THREE: Final = r"\p{N}{1,3}"
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SPACES_LINE_BY_LINE: Final = r"\s*[\r\n]|\s+(?!\S)|\s+"


def _cl100k(
    digits: str,
    *,
    contractions: str = rf"{_CONTRACTIONS}|",
    word: str = r"[^\r\n\p{L}\p{N}]?\p{L}+",
    punctuation: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    spaces: str = _SPACES,
) -> str:
    """The pattern of OpenAI's cl100k_base and its many variants."""
    return f"{contractions}{word}|{digits}|{punctuation}|{spaces}"


def _o200k(
    digits: str,
    suffix: str = rf"{_CONTRACTIONS}?",
    *,
    but: str = "",
    punctuation: str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
) -> str:
    """The pattern of OpenAI's o200k_base: a word changes from capitals to small letters at most
    once. `suffix` may follow a word; `but` takes letters away."""
    capital = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    small = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{before}{capital}*{small}+{suffix}|{before}{capital}+{small}*{suffix}"
        f"|{digits}|{punctuation}|{_SPACES}"
    )


_CASED: Final = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters with a case, as DeepSeek LLM's file lists them."""
_HAN_KANA: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_HANGUL: Final = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK3_WORDS: Final = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
)
_DEEPSEEK3: Final = _DEEPSEEK3_WORDS + "[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
_BLOOM: Final = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
_RUNS_OF_SPACES: Final = "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1))


def _named(
    names: str,
    *splits: str,
    nfc: bool = False,
    ignore_merges: bool = False,
    adds_bos: bool = False,
) -> dict[str, PreTokenizer]:
    pipeline = Pipeline(splits, nfc=nfc, ignore_merges=ignore_merges)
    return dict.fromkeys(names.split(), PreTokenizer(pipeline, adds_bos))


PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    **_named(
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe "
        "gigachat a.x-4.0 mellum modern-bert exaone4 jais trillion granite-docling",
        GPT2_REGEX,
    ),
    **_named("mpt olmo", GPT2_REGEX, nfc=True),
    **_named("smollm starcoder refact codeshell exaone minerva-7b mellum2", DIGITS, GPT2_REGEX),
    **_named("command-r", DIGITS, GPT2_REGEX, nfc=True),
    **_named(
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        _cl100k(_THREE),
        ignore_merges=True,
        adds_bos=True,
    ),
    **_named("glm4 glm5", _cl100k(_THREE), ignore_merges=True),
    **_named("dbrx smaug-bpe chatglm-bpe", _cl100k(_THREE)),
    **_named("qwen2 deepseek-r1-qwen megrez kormo f2llmv2", _cl100k(_ONE), nfc=True),
    **_named("stablelm2 hunyuan solar-open grok-2", _cl100k(_ONE)),
    **_named(
        "qwen35",
        _cl100k(
            _ONE,
            word=r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
            punctuation=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        ),
        nfc=True,
    ),
    **_named("ufakzeka", _cl100k(_ONE, contractions="")),
    **_named("laguna", r"[^\n]+|[\n]+", _cl100k(_ONE)),
    **_named("minicpm5", _THREE, _cl100k(r"\p{N}+"), ignore_merges=True),
    **_named(
        "jais-2",
        _cl100k(_THREE, spaces=rf"\s*[\r\n]+|{_RUNS_OF_SPACES}|\s{{1,2}}(?!\S)|\s{{1}}"),
    ),
    **_named("seed-coder", _cl100k(r"\p{N}{1}", punctuation=r" ?[^\s\p{L}\p{N}\r\n]+")),
    **_named(
        "bailingmoe bailingmoe2 llada-moe",
        _cl100k(
            _ONE,
            contractions=r"'(?i:[sdmt]|ll|ve|re)|",
            word=r"[^\r\n\p{L}\p{N}]?+\p{L}+",
            punctuation=r" ?[^\s\p{L}\p{N}]++[\r\n]*",
            spaces=_SPACES_LINE_BY_LINE,
        ),
    ),
    **_named(
        "exaone-moe",
        _cl100k(
            _ONE,
            word=r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
            punctuation=r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
            spaces=_SPACES_LINE_BY_LINE,
        ),
    ),
    **_named("tekken", _o200k(_ONE, suffix=""), ignore_merges=True, adds_bos=True),
    **_named("gpt-4o llama4 kanana2 talkie minimax-m2", _o200k(_THREE)),
    **_named("granite-embed-multi-97m", _o200k(_THREE), ignore_merges=True),
    **_named("tiny_aya cohere2moe", r"\d{1,3}(?=(?:\d{3})*\b)", _o200k(_THREE)),
    **_named(
        "youtu",
        "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b"
        f"\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|{_HAN_KANA}",
        _o200k(_ONE),
        ignore_merges=True,
    ),
    **_named(
        "kimi-k2",
        r"[\p{Han}]+|"
        + _o200k(_THREE, but=r"&&[^\p{Han}]", punctuation=r" ?[^\s\p{L}\p{N}]+[\r\n]*"),
    ),
    **_named("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", _THREE, _HAN_KANA, _DEEPSEEK3),
    **_named("spark2_5", _THREE, _HAN_KANA, f"{_DEEPSEEK3_WORDS}|[\r\n]|\\s+(?!\\S)|\\s+", _ONE),
    **_named(
        "afmoe",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
        "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f"
        "\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f"
        "\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
        _DEEPSEEK3.replace("\r\n", r"\r\n"),
    ),
    **_named(
        "deepseek-llm",
        "[\r\n]",
        rf"\s?[{_CASED}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _HAN_HANGUL,
        DIGITS,
    ),
    **_named("deepseek-coder", "[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, DIGITS),
    **_named("bloom poro-chat gpt3-finnish", _BLOOM),
    **_named("viking", _BLOOM, DIGITS),
    **_named("superbpe", r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    **_named("falcon", r"[\p{P}\$\+<=>\^~\|`]+", GPT2_REGEX, "[0-9][0-9][0-9]"),
    **_named(
        "chameleon",
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        DIGITS,
        r"[\p{P}!-/:-@\[-`{-~]",
        GPT2_REGEX,
        adds_bos=True,
    ),
    **_named("default", r"[\p{P}\$\+<=>\^~\|]+", GPT2_REGEX, r"\p{N}+", "[0-9][0-9][0-9]"),
}
"""By the name in the file; `default` is also that of files without one."""


def pre_tokenizer_of(name: str) -> PreTokenizer:
    """The pre-tokenizer that llama.cpp gave this name (`tokenizer.ggml.pre`). Raises ConfigError
    for one that cannot be built exactly."""
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        raise ConfigError(
            f"the pre-tokenizer {name[:64]!r} cannot be built exactly; choose a model with one of "
            f"{', '.join(sorted(PRE_TOKENIZERS))}, or one with a tokenizer.json"
        ) from None
