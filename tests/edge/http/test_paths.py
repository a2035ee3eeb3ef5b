"""Paths that clients make of a base URL, and proxies of a target, are those of the routes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.edge.http.paths import normal_path


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("//v1///models//", "/v1/models"),
        ("/v1/models/org/large", "/v1/models/org/large"),
        ("/", "/"),
        ("//", "/"),
        ("", "/"),
        ("http://edge:8080/v1/models", "/v1/models"),
        ("HTTPS://edge//v1/models/", "/v1/models"),
        ("http://edge", "/"),
        ("/http://edge/v1/models", "/http:/edge/v1/models"),
        ("ftp://edge/v1/models", "ftp:/edge/v1/models"),
        ("*", "*"),
    ],
)
def test_what_is_around_a_path_goes(path: str, normal: str) -> None:
    assert normal_path(path) == normal


@given(st.text(alphabet="/ahtps:.", max_size=30))
def test_a_normal_path_has_no_empty_segments(path: str) -> None:
    made = normal_path(path)
    assert "//" not in made
    assert made == "/" or not made.endswith("/")
