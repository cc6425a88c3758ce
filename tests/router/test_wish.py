"""When metadata is fetched: at the earliest wish, but not twice in a moment."""

from __future__ import annotations

from bruce_mp.router.wish import SPACING_MS, MetadataWish


def test_the_earliest_wish_counts_and_wishes_end_with_a_fetch() -> None:
    wish = MetadataWish()
    dues = [wish.due_ms]
    wish.begun(1000)
    dues.append(wish.due_ms)
    for at_ms in (3000, 2000, 4000):
        wish.want(at_ms)
    dues.append(wish.due_ms)
    wish.begun(2000)
    wish.want(2001)
    assert [*dues, wish.due_ms] == [0, None, 2000, 2000 + SPACING_MS]
