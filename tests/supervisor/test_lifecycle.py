import pytest

from bruce_mp.supervisor.lifecycle import ALIVE, TRANSITIONS, UNWANTED, Event, State, advance


@pytest.mark.parametrize("state", [state for state in State if state in ALIVE])
def test_a_process_that_lives_can_end_stop_and_be_replaced_at_any_time(state: State) -> None:
    assert {Event.READY, Event.FINISHED, Event.CRASHED, Event.STOP, Event.REPLACE} == TRANSITIONS[state].keys()


@pytest.mark.parametrize("state", State)
def test_nothing_that_was_stopped_lives_again_by_itself(state: State) -> None:
    stopped = advance(state, Event.STOP)
    assert stopped in UNWANTED
    for end in (Event.FINISHED, Event.CRASHED):
        if end in TRANSITIONS[stopped]:
            assert advance(stopped, end) is State.ENDED


@pytest.mark.parametrize("state", State)
def test_what_is_to_be_replaced_begins_anew_when_it_has_ended(state: State) -> None:
    replaced = advance(state, Event.REPLACE)
    assert replaced not in UNWANTED
    if replaced is not State.WAITING:
        assert advance(replaced, Event.FINISHED) is advance(replaced, Event.CRASHED) is State.WAITING


@pytest.mark.parametrize("state", [State.BOOTING, State.RUNNING])
def test_a_crash_is_followed_by_a_new_life_and_a_proper_end_is_not(state: State) -> None:
    assert advance(state, Event.CRASHED) is State.WAITING
    assert advance(state, Event.FINISHED) is State.ENDED


def test_only_what_waits_can_be_spawned() -> None:
    assert [state for state in State if Event.SPAWNED in TRANSITIONS[state]] == [State.WAITING]
