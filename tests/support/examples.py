"""How many examples hypothesis tries: few by default, so that all tests together stay quick.

`BRUCE_TEST_EXAMPLES=1000 pytest ...` tries so many for every property.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def examples(count: int, *, steps: int = 50) -> settings:
    """Settings of a property: examples to try, and steps in each where it is a state machine."""
    return settings(
        max_examples=int(os.environ.get("BRUCE_TEST_EXAMPLES", count)),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
