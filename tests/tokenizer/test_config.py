"""The tokenizer service's settings."""

from __future__ import annotations

import pytest

from outrider.errors import ConfigError
from services.tokenizer.config import TokenizerConfig


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
