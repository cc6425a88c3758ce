"""The number of examples that hypothesis tries: few by default, so that all tests together stay quick.

`pytest --hypothesis-profile=deep ...` tries DEEP examples for each property, and twenty times as many seeds; with the
profile `brief`, for the loop of an edit, it tries a sixth of the examples.
"""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings

__all__ = ["DEEP", "examples", "register_profiles", "seeds"]

DEEP: Final = 20_000
_DEEP_SEEDS: Final = 20
_BRIEF_PART: Final = 6


def register_profiles() -> None:
    """Register the profiles that `--hypothesis-profile` can name, and load the one that serves without it."""
    settings.register_profile("deep", max_examples=DEEP, deadline=None)
    settings.register_profile("brief", max_examples=50 // _BRIEF_PART, deadline=None)
    settings.register_profile("quick", max_examples=50, deadline=None)  # a busy machine is no failure
    settings.load_profile("quick")


def examples(count: int, *, steps: int = 50) -> settings:
    """Return the settings of a property: examples to try, and steps of each example of a state machine."""
    return settings(
        max_examples=_scaled(count),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.function_scoped_fixture,  # ours are the same for all examples of a test
        ],
    )


def seeds(count: int) -> range:
    """Return the seeds of randomized tests without hypothesis."""
    return range(count * _DEEP_SEEDS if settings.get_current_profile_name() == "deep" else count)


def _scaled(count: int) -> int:
    return {"deep": DEEP, "brief": max(count // _BRIEF_PART, 1)}.get(settings.get_current_profile_name(), count)
