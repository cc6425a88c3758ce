import pytest

from bruce_mp.supervisor.processes.lifecycle import (
    ALIVE_STATES,
    TRANSITIONS,
    UNWANTED_STATES,
    ProcessEvent,
    ProcessState,
)


@pytest.mark.parametrize("state", [state for state in ProcessState if state in ALIVE_STATES])
def test_a_live_process_can_end_stop_and_be_replaced_in_any_state(state: ProcessState) -> None:
    assert {
        ProcessEvent.READY,
        ProcessEvent.FINISHED,
        ProcessEvent.EXITED,
        ProcessEvent.STOP,
        ProcessEvent.REPLACE,
    } == TRANSITIONS[state].keys()


@pytest.mark.parametrize("state", ProcessState)
def test_a_stopped_process_never_restarts(state: ProcessState) -> None:
    stopped = TRANSITIONS[state][ProcessEvent.STOP]
    assert stopped in UNWANTED_STATES
    for end in (ProcessEvent.FINISHED, ProcessEvent.EXITED):
        if end in TRANSITIONS[stopped]:
            assert TRANSITIONS[stopped][end] is ProcessState.ENDED


@pytest.mark.parametrize("state", ProcessState)
def test_a_replaced_process_restarts_after_its_end(state: ProcessState) -> None:
    replaced = TRANSITIONS[state][ProcessEvent.REPLACE]
    assert replaced not in UNWANTED_STATES
    if replaced is not ProcessState.WAITING:
        assert (
            TRANSITIONS[replaced][ProcessEvent.FINISHED]
            is TRANSITIONS[replaced][ProcessEvent.EXITED]
            is ProcessState.WAITING
        )


@pytest.mark.parametrize("state", [ProcessState.BOOTING, ProcessState.RUNNING])
def test_a_crashed_process_restarts_and_a_finished_one_does_not(state: ProcessState) -> None:
    assert TRANSITIONS[state][ProcessEvent.EXITED] is ProcessState.WAITING
    assert TRANSITIONS[state][ProcessEvent.FINISHED] is ProcessState.ENDED


def test_only_a_waiting_process_can_be_spawned() -> None:
    assert [state for state in ProcessState if ProcessEvent.SPAWNED in TRANSITIONS[state]] == [ProcessState.WAITING]
