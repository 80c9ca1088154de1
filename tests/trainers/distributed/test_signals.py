import os
import signal
import threading

import pytest

from trainers.distributed.signals import StopSignal
from trainers.errors import Interruption


def send(number: int) -> None:
    """A signal to this very process; Python takes it before the next line."""
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_at_once_where_nobody_listens(number: int, code: int) -> None:
    stop = StopSignal()
    with stop.on_signals(), pytest.raises(Interruption):
        send(number)
    assert stop.exit_code == code


def test_a_listener_sees_to_the_first_signal_and_the_second_ends_at_once() -> None:
    stop = StopSignal()
    reached = []
    with stop.on_signals(), pytest.raises(Interruption), stop.deferred():
        send(signal.SIGTERM)
        reached.append(stop.received)
        send(signal.SIGTERM)
        pytest.fail("the second signal did not end it")
    assert reached == [True]


def test_a_terminal_that_closes_asks_once() -> None:
    stop = StopSignal()
    with stop.on_signals(), pytest.raises(Interruption), stop.deferred():
        send(signal.SIGHUP)
        # Again from the shell.
        send(signal.SIGHUP)
        assert stop.received
        send(signal.SIGTERM)
        pytest.fail("another signal did not end it")
    assert stop.exit_code == 143


def test_a_command_under_nohup_goes_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = StopSignal()
    try:
        with stop.on_signals(), stop.on_signals():
            send(signal.SIGHUP)
            assert not stop.received
    finally:
        signal.signal(signal.SIGHUP, before)


def test_who_listens_no_more_is_ended_by_what_came_meanwhile() -> None:
    stop = StopSignal()
    with stop.on_signals(), pytest.raises(Interruption):
        with stop.deferred():
            send(signal.SIGINT)
        pytest.fail("went on")
    with stop.deferred():
        stop.reset()
    assert not stop.received


def test_an_error_of_a_listener_is_not_hidden_by_a_request_to_stop() -> None:
    stop = StopSignal()
    with stop.on_signals(), pytest.raises(ValueError, match="mine"), stop.deferred():
        send(signal.SIGTERM)
        raise ValueError("mine")


def test_handlers_are_as_before_afterwards_also_where_a_library_takes_them_meanwhile() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = StopSignal()
    with stop.on_signals():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with stop.on_signals(), pytest.raises(Interruption):
            send(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_outside_the_main_thread_signals_stay_as_they_are() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def run() -> None:
        with StopSignal().on_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
