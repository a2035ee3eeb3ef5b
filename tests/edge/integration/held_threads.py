"""An edge whose tokenization threads are busy for as long as a test says."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Generator

import pytest

from outrider.tokenization.encoder import CachingEncoder, PartialPrompt


class HeldThreads:
    """Tokenization threads of an edge that do not get on until the block ends."""

    def __init__(self, encoder: CachingEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_entered = threading.Semaphore(0)
        self.is_open = threading.Event()
        in_slices, loop = encoder.in_slices, threading.current_thread()

        def held(
            prompt: PartialPrompt, *, may_wait: bool = True
        ) -> Generator[int, None, array[int]]:
            if threading.current_thread() is not loop:
                self.num_entered.release()
                assert self.is_open.wait(60.0)
            return (yield from in_slices(prompt, may_wait=may_wait))

        monkeypatch.setattr(encoder, "in_slices", held)

    def __enter__(self) -> HeldThreads:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open.set()
