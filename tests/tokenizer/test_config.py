"""The tokenizer service's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.config import load
from outrider.errors import ConfigError
from outrider.tokenization.rewriting import RewritingPolicy
from services.tokenizer.config import TokenizerConfig


def test_settings_from_file_environment_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text('[tokenizer]\nmodels = ["a", "b"]\nthreads = 3\n')
    config = load(
        TokenizerConfig,
        "tokenizer",
        file=file,
        environ={"OUTRIDER_TOKENIZER_THREADS": "4", "OUTRIDER_TOKENIZER_MODEL_STORE": "store"},
        flags={"port": 7100},
    )
    assert (config.models, config.threads, config.port) == (("a", "b"), 4, 7100)
    assert config.model_store == Path("store")


def test_rewriting_is_a_table_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text('[tokenizer.rewriting]\nsystem_prefix = "Be brief."\ntoo_long = "cut_tail"\n')
    config = load(TokenizerConfig, "tokenizer", file=file, environ={}, flags={})
    assert config.rewriting == RewritingPolicy("Be brief.", "cut_tail")
    assert TokenizerConfig().rewriting == RewritingPolicy()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("models", ()),
        ("threads", 0),
        ("vocabulary_timeout_s", 0.0),
        ("max_in_flight", -1),
        ("port", 65536),
        ("drain_s", -1.0),
        ("max_text_bytes", 16 << 20),
    ],
)
def test_absurd_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        TokenizerConfig(**{field: value})  # type: ignore[arg-type]
