"""Reads that are stopped: by Ctrl-C behind a chunk; by whoever insists, or by an error, in one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator

import pytest
import torch

from apportion.errors import InputError
from apportion.prefill.context import ReadInterruptedError
from apportion.prefill.interrupt import finishing
from apportion.prefill.reader import Reader
from prefill.decoders import build
from prefill.engines import ids_of, same, snapshot

pytestmark = pytest.mark.usefixtures("unmetered")

QUESTION = torch.tensor([5, 60, 7])


@pytest.fixture(autouse=True)
def heard() -> Generator[None]:
    """A run in the background of a shell is told to ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def reader_of(model, **options) -> Reader:
    return Reader(model, None, 12, 8, **{"chunks": "fixed", **options})


def at_chunk(model, number: int, act) -> None:
    """Do something within the second layer, in one chunk of the forwards to come."""
    count = 0

    def look(*args):
        nonlocal count
        count += 1
        if count == number:
            act()

    model.model.layers[1].register_forward_pre_hook(look)


def press() -> None:
    """Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def divide(by: None) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("scorer", ["snapkv", "h2o", "random"])
def test_ctrl_c_ends_a_read_behind_its_chunk(scorer):
    model = build("llama")
    ids, real = ids_of(48, 35)
    reader = reader_of(model, schedule="fixed", scorer=scorer)
    whole = reader.read(ids, attention_mask=real.long())
    at_chunk(model, 3, press)
    with pytest.raises(ReadInterruptedError, match="stopped after 24 tokens") as caught:
        reader.read(ids, attention_mask=real.long())
    context = caught.value.context
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert context.tokens == 24
    assert len(context.ask(QUESTION, max_new_tokens=3, sample=1).ids) == 3
    context.extend(ids[:, context.tokens :])
    assert torch.equal(context.logits, whole.logits)
    assert same(snapshot(context.engine), snapshot(whole.engine))
    drawn = {"max_new_tokens": 4, "temperature": 2.0}
    assert context.ask(QUESTION, **drawn).ids == whole.ask(QUESTION, **drawn).ids


def test_ctrl_c_in_the_first_chunk_and_twice():
    model, ids = build("llama"), ids_of(48)[0]
    at_chunk(model, 1, press)
    with pytest.raises(ReadInterruptedError, match="stopped after 8 tokens"):
        reader_of(model).read(ids)
    # Whoever insists stops at once, in the middle of a chunk: nothing can be gone on with.
    for number in (1, 3):
        at_chunk(model, number, lambda: (press(), press()))
        with pytest.raises(KeyboardInterrupt) as caught:
            reader_of(model).read(ids)
        assert not isinstance(caught.value, ReadInterruptedError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_turn_that_failed_halfway_is_not_asked():
    model = build("llama")
    reader = reader_of(model)
    context = reader.read(ids_of(24)[0])

    def fail():
        raise MemoryError

    at_chunk(model, 2, fail)
    with pytest.raises(MemoryError):
        context.extend(ids_of(24)[0])
    for go_on in (lambda: context.ask(QUESTION), lambda: context.extend(ids_of(8)[0])):
        with pytest.raises(InputError, match="read the text again"):
            go_on()


def test_other_threads_and_other_handlers_are_left_alone():
    ran = []

    def work():
        with finishing():
            ran.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran == [signal.default_int_handler]
    told, before = [], signal.signal(signal.SIGINT, lambda *args: told.append(args))
    try:
        with finishing():
            press()
            assert not told
        assert len(told) == 1
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with finishing():
            press()
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ZeroDivisionError), finishing():
        divide(press())
    assert signal.getsignal(signal.SIGINT) is before
