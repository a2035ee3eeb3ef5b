"""The thread that gets sizes ready one by one."""

from __future__ import annotations

import os
import threading

from outrider.engines.openvino.preparation import Preparation
from outrider.errors import EngineError


def test_sizes_are_prepared_in_order() -> None:
    done: list[int] = []
    Preparation([1, 2, 4], done.append, lambda: done.append(0)).wait()
    assert done == [1, 2, 4, 0]


def test_a_failure_ends_it_and_nothing_else() -> None:
    done: list[int] = []

    def prepare(size: int) -> None:
        if size == 2:
            raise EngineError("no memory")
        done.append(size)

    Preparation([1, 2, 4], prepare, lambda: done.append(0)).wait()
    assert done == [1, 0]


def test_its_thread_is_never_less_nice_than_what_started_it() -> None:
    found: list[int] = []

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def start() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        Preparation([1], lambda size: found.append(niceness()), lambda: None).wait()

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert found == [19], "who is not root cannot lower it: the thread would end before its work"


def test_stopping_ends_it_after_the_size_in_work() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), list[int]()

    def prepare(size: int) -> None:
        begun.set()
        go_on.wait()
        done.append(size)

    preparation = Preparation([1, 2], prepare, lambda: done.append(0))
    waiter = threading.Thread(target=preparation.wait)
    waiter.start()
    begun.wait()
    stopper = threading.Thread(target=preparation.stop)
    stopper.start()
    while not preparation.is_stopping:
        begun.wait()
    go_on.set()
    stopper.join()
    waiter.join()
    assert done == [1, 0]


def test_nothing_is_prepared_while_calls_come_and_stopping_waits_for_nothing() -> None:
    done: list[int] = []
    preparation = Preparation([1, 2], done.append, lambda: done.append(0))
    preparation.called()
    preparation.stop()
    assert done == [0]
