"""docs/operating.md and docs/delivery.md have each alert, each sentence of /healthz and each reason of a discard."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.discards.reasons import CAUSED_BY_CLIENTS, CAUSED_BY_FAULT
from bruce_mp.errors import DiscardReason
from bruce_mp.status.pages import certificates, health
from support.doc_pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE: Final = (ROOT / "docs" / "operating.md").read_text()
RULES: Final = (ROOT / "deploy" / "prometheus" / "bruce.rules.yml").read_text()
ALERTS: Final = re.findall(r"- alert: (\w+)\n((?: {8}.*\n)+)", RULES)
DELEGATES: Final[dict[Callable[..., object], list[Callable[..., object]]]] = {
    health._discards_by_fault: [health._recent_discards],
    health._discards_by_clients: [health._recent_discards],
    health._expired_certificates: [certificates.certificate_problems],
    health._expiring_certificates: [certificates.certificate_warnings, certificates._subject_of],
}
"""Checks that leave the sentence to other functions."""


def section(heading: str) -> str:
    return PAGE.partition(f"\n{heading}\n")[2].partition("\n#")[0]


def test_every_alert_of_the_rules_is_parsed() -> None:
    assert len(ALERTS) == RULES.count("alert:") > 10


@pytest.mark.parametrize(("name", "rule"), ALERTS)
def test_each_alert_is_explained_at_its_runbook_link(name: str, rule: str) -> None:
    assert len(section(f"### {name}").strip()) > 60
    assert f"runbook: docs/operating.md#{name.lower()}\n" in rule


def test_no_removed_alert_is_explained() -> None:
    explained = re.findall(r"^### (Bruce\w+)$", PAGE, re.MULTILINE)
    assert explained == [name for name, _ in ALERTS]


def test_each_reason_that_alarms_is_explained() -> None:
    assert set(re.findall(r"^\| `(\w+)`", section("### BruceLosesMessages"), re.MULTILINE)) == {
        reason.name for reason in CAUSED_BY_FAULT
    }


@pytest.mark.parametrize(
    ("alert", "reasons"),
    [("BruceLosesMessages", frozenset(DiscardReason) - CAUSED_BY_FAULT), ("BruceClientMistakes", CAUSED_BY_CLIENTS)],
)
def test_alert_rules_and_health_classify_discard_reasons_alike(alert: str, reasons: frozenset[DiscardReason]) -> None:
    [named] = re.findall(r'reason[!=]~"([^"]*)"', dict(ALERTS)[alert])
    assert set(named.split("|")) == {reason.name for reason in reasons}


# --- /healthz ---------------------------------------------------------------------------------------------------------
FRAGMENTS: Final = re.findall(r"^\| `([^`]+)`", section("## What `/healthz` says"), re.MULTILINE)


def text_of(check: Callable[..., object]) -> str:
    """The source, its strings joined."""
    return re.sub(r'"\s*f?"', "", inspect.getsource(check))


@pytest.mark.parametrize(
    "check", [health._failed_processes, *health.PROBLEMS, *health.WARNINGS], ids=lambda it: it.__name__
)
def test_each_sentence_is_explained(check: Callable[..., object]) -> None:
    said = "".join(map(text_of, DELEGATES.get(check, [check])))
    explained = [fragment for fragment in FRAGMENTS if fragment in said]
    assert len(explained) >= len(re.findall(r"\byield\b(?! from)", said)) > 0


def test_no_removed_health_sentence_is_explained() -> None:
    sources = text_of(health) + text_of(certificates)  # type: ignore[arg-type]
    assert [fragment for fragment in FRAGMENTS if fragment not in sources] == []


def test_delivery_has_a_row_for_each_reason() -> None:
    page = (ROOT / "docs" / "delivery.md").read_text()
    rows = "".join(line for line in page.splitlines() if line.startswith("|"))
    assert [reason.name for reason in DiscardReason if f"`{reason.name}`" not in rows] == []
