import pytest

from bruce_mp.supervisor.processes.lifecycle import ALIVE, TRANSITIONS, UNWANTED, ProcessEvent, ProcessState, advance


@pytest.mark.parametrize("state", [state for state in ProcessState if state in ALIVE])
def test_a_process_that_lives_can_end_stop_and_be_replaced_at_any_time(state: ProcessState) -> None:
    assert {
        ProcessEvent.READY,
        ProcessEvent.FINISHED,
        ProcessEvent.CRASHED,
        ProcessEvent.STOP,
        ProcessEvent.REPLACE,
    } == TRANSITIONS[state].keys()


@pytest.mark.parametrize("state", ProcessState)
def test_nothing_that_was_stopped_lives_again_by_itself(state: ProcessState) -> None:
    stopped = advance(state, ProcessEvent.STOP)
    assert stopped in UNWANTED
    for end in (ProcessEvent.FINISHED, ProcessEvent.CRASHED):
        if end in TRANSITIONS[stopped]:
            assert advance(stopped, end) is ProcessState.ENDED


@pytest.mark.parametrize("state", ProcessState)
def test_what_is_to_be_replaced_begins_anew_when_it_has_ended(state: ProcessState) -> None:
    replaced = advance(state, ProcessEvent.REPLACE)
    assert replaced not in UNWANTED
    if replaced is not ProcessState.WAITING:
        assert (
            advance(replaced, ProcessEvent.FINISHED) is advance(replaced, ProcessEvent.CRASHED) is ProcessState.WAITING
        )


@pytest.mark.parametrize("state", [ProcessState.BOOTING, ProcessState.RUNNING])
def test_a_crash_is_followed_by_a_new_life_and_a_proper_end_is_not(state: ProcessState) -> None:
    assert advance(state, ProcessEvent.CRASHED) is ProcessState.WAITING
    assert advance(state, ProcessEvent.FINISHED) is ProcessState.ENDED


def test_only_what_waits_can_be_spawned() -> None:
    assert [state for state in ProcessState if ProcessEvent.SPAWNED in TRANSITIONS[state]] == [ProcessState.WAITING]
