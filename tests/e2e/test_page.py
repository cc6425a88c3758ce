"""The overview page of a real daemon in a real browser."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import pytest
from selenium.webdriver.common.keys import Keys

from bruce_mp.client import DatagramClient
from bruce_mp.devbroker.control import DevBroker
from support.daemon import Daemon
from support.ports import ReservedPort
from support.read_back import broker_fixture
from support.traffic import Load, start_senders

if TYPE_CHECKING:
    from pathlib import Path

    from support.browser import Browser

pytestmark = pytest.mark.process

TOPICS: Final = tuple(f"topic-{number}" for number in range(6))
COMPRESSED: Final = {"compression.default": "small", "compression.configs.small.type": "lz4"}
ONE_EACH: Final = {
    "rate_limit.default": "few",
    "rate_limit.configs.few.max_count": 1,
    "rate_limit.configs.few.interval_ms": 100_000,
}
WIDTHS: Final = (320, 360, 700, 1024, 1100, 1280, 1920)
broker = broker_fixture(brokers=3, topics=dict.fromkeys(TOPICS, 4))


def send(daemon: Daemon, *messages: tuple[str, bytes]) -> None:
    with DatagramClient(str(daemon.socket_path), timeout=60) as client:
        for topic, value in messages:
            client.send(topic, value)


def open_page(browser: Browser, daemon: Daemon, *, width: int = 1280, dark: bool = False) -> None:
    """Open the page and wait for its first answer."""
    browser.open(daemon.url("/"), width=width, dark=dark)
    browser.wait(lambda: browser.text("#updated"), "the first answer")


def wait_state(browser: Browser, state: str) -> None:
    browser.wait(lambda: browser.find("#state").get_attribute("data-state") == state, f"the state {state}")


TOO_WIDE: Final = """
    const found = [];
    for (const part of document.querySelectorAll("main > section, header, footer")) {
        const edge = Math.min(part.getBoundingClientRect().right, innerWidth) + 1;
        for (const each of part.querySelectorAll(":not(.sr, .sr *, svg *)")) {
            const { right } = each.getBoundingClientRect();
            if (right > edge) found.push(`${each.tagName}.${each.className} in ${part.id} ends at ${right}`);
        }
    }
    return found;
"""


def assert_nothing_sticks_out(browser: Browser) -> None:
    """Check that no element exceeds its container or makes the page scroll sideways."""
    assert browser.run(TOO_WIDE) == []
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0


CONTRASTS: Final = """
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (rgb) => rgb.slice(0, 3).map((each) => each / 255)
        .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
        .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
    const ground = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const colour = parts(getComputedStyle(each).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    return Array.from(document.querySelectorAll("body *"))
        .filter((each) => each.getClientRects().length && !each.closest("svg, .skip, option"))
        .filter((each) => Array.from(each.childNodes).some((node) => node.nodeType === 3 && node.data.trim()))
        .map((each) => {
            const [one, other] = [light(parts(getComputedStyle(each).color)), light(ground(each))];
            const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
            return [contrast, each.textContent.trim().slice(0, 40)];
        })
        .filter(([contrast]) => contrast < 4.5);
"""


# --- at rest ----------------------------------------------------------------------------------------------------------
def test_the_page_of_an_idle_daemon_is_healthy(tmp_path: Path, broker: DevBroker, browser: Browser) -> None:
    with Daemon(tmp_path, broker.bootstrap) as daemon:
        open_page(browser, daemon)
        wait_state(browser, "good")
        assert "healthy" in browser.driver.title
        assert "received 0 = delivered 0 + discarded 0 + held 0" in browser.text("#books")
        assert "they balance" in browser.text("#books")
        for part in ("paused-table", "topics-table", "reasons-table", "compression-table"):
            assert browser.texts(f"#{part} .empty")[0], part
        browser.find("#fetch-metadata button").click()
        browser.wait(lambda: "initiated" in browser.text("#fetch-answer"), "the answer to the wish for metadata")
        assert [text.split(" at ")[0] for text in browser.texts("#brokers-table tbody th")] == ["1", "2", "3"]
        origin = daemon.url("")
        asked = browser.run("return performance.getEntriesByType('resource').map((each) => each.name)")
        assert {f"{origin}/page.js", f"{origin}/page.css"} <= set(asked)
        assert [url for url in asked if not url.startswith(origin)] == []
        assert browser.console_errors() == []


def test_the_page_is_accessible_in_both_colour_schemes(tmp_path: Path, broker: DevBroker, browser: Browser) -> None:
    with Daemon(tmp_path, broker.bootstrap, ONE_EACH) as daemon:
        send(daemon, *[(topic, b"x") for topic in TOPICS * 2], ("nothing", b"x"))
        daemon.wait_settled(13)
        for dark in (True, False):
            open_page(browser, daemon, dark=dark)
            browser.wait(lambda: len(browser.texts("#reasons-table tbody tr")) == 2, "the discards")
            assert browser.run(CONTRASTS) == []
        assert browser.run("return document.documentElement.lang") == "en"
        assert len(browser.texts("h1")) == 1
        for selector in (
            "th:not([scope])",
            "img:not([alt])",
            "table:not(:has(caption))",
            "td:not([role]), tr:not([role])",
        ):
            assert browser.run("return document.querySelectorAll(arguments[0]).length", selector) == 0, selector
        unnamed = "return [...document.querySelectorAll('input, select')].filter((each) => !each.labels.length).length"
        assert browser.run(unnamed) == 0


# --- under load -------------------------------------------------------------------------------------------------------
def test_the_page_shows_traffic_under_load(tmp_path: Path, broker: DevBroker, browser: Browser) -> None:
    load = Load(TOPICS, senders=2, messages=5000, largest=30_000)
    with Daemon(tmp_path, broker.bootstrap, {"input.unix_datagram.when_full": "block", **COMPRESSED}) as daemon:
        open_page(browser, daemon)
        senders = start_senders(load, daemon.socket_path)
        browser.wait(lambda: browser.text("#t-out").startswith(tuple("123456789")), "something delivered")
        browser.wait(lambda: browser.run("return document.querySelectorAll('#chart-minute .s-in').length"), "a chart")
        for sender in senders:
            assert sender.wait(120) == 0
        books = daemon.wait_settled(load.total)
        browser.wait(
            lambda: f"received {load.total:,} = delivered {load.total:,}" in browser.text("#books"), "all of it"
        )
        assert books.delivered == load.total
        assert sorted(browser.texts("#topics-table tbody th")) == list(TOPICS)
        browser.wait(lambda: browser.texts("#compression-table tbody tr"), "ratios")
        assert "of them in flight" in browser.text("#t-held-note")
        open_page(browser, daemon, width=WIDTHS[0])
        for width in WIDTHS:
            browser.resize(width)
            assert_nothing_sticks_out(browser)
        assert browser.console_errors() == []


def test_topic_names_and_samples_are_never_executed(tmp_path: Path, browser: Browser) -> None:
    hostile = (
        "<script>hacked=1</script>",
        "<img src=x onerror=hacked=1>",
        '"><svg onload=hacked=1>',
        "{{7*7}}${hacked=1}",
    )
    with DevBroker(topics={"fine": 1}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        send(daemon, *[(topic, b"<script>hacked=1</script>") for topic in hostile], ("fine", b"x"))
        daemon.send_encoded(
            b"<script>hacked=1</script> \xff\x00 <img src=x onerror=hacked=1>", "\u202eevil \u00fc<b>".encode()
        )
        daemon.wait_settled(len(hostile) + 3)
        open_page(browser, daemon)
        browser.wait(lambda: len(browser.texts("#samples code")) == len(hostile) + 2, "the samples")
        shown = browser.texts("#samples code")
        assert set(hostile) <= set(shown)
        assert r"<script>hacked=1</script> \xff\x00 <img src=x onerror=hacked=1>" in shown
        assert r"\xe2\x80\xaeevil \xc3\xbc<b>" in shown
        assert browser.run("return typeof hacked") == "undefined"
        assert (
            browser.run("return document.querySelectorAll('main script, main img, main b b, svg[onload]').length") == 0
        )
        browser.find("#topic-filter").send_keys(hostile[0])
        browser.wait(lambda: "No topic has that" in browser.text("#topics-table"), "the answer to the filter")
        assert browser.console_errors() == []


# --- in trouble -------------------------------------------------------------------------------------------------------
DRAWN: Final = "return document.querySelectorAll(`${arguments[0]} ${arguments[1]}`).length"


def test_the_page_shows_a_down_broker(tmp_path: Path, browser: Browser) -> None:
    with DevBroker(topics={"news": 2}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        send(daemon, ("news", b"1"))
        daemon.wait_settled(1)
        open_page(browser, daemon)
        wait_state(browser, "good")
        broker.broker_down(1)
        send(daemon, ("news", b"2"), ("news", b"3"))
        wait_state(browser, "bad")
        browser.wait(lambda: "No broker can be reached" in browser.text("#complaints"), "the problem and its remedy")
        browser.wait(lambda: browser.texts("#paused-table tbody th"), "what is paused")
        browser.wait(lambda: "failed" in browser.text("#brokers-table"), "the broker's state")
        assert "problem" in browser.driver.title
        assert browser.text("#t-held").strip() == "2"
        link = browser.find("#complaints .problem a")
        assert link.get_attribute("href") == daemon.url("/operating#no-broker-can-be-reached-for")
        link.click()
        browser.wait(lambda: browser.texts("tr:target td"), "the entry of the problem")
        assert "check brokers, firewall" in browser.text("tr:target")
        assert_nothing_sticks_out(browser)
        open_page(browser, daemon)
        broker.broker_up(1)
        daemon.wait_settled(3)
        wait_state(browser, "good")
        assert not browser.find("#complaints").is_displayed()
        browser.console_errors()


def delivered(daemon: Daemon, query: str) -> float:
    """Return the sum of the rates of `/history`."""
    series = daemon.get(f"/history/json?{query}")["series"]
    return float(sum(series["delivered"]))


def test_the_page_shows_the_history_over_a_restart(tmp_path: Path, broker: DevBroker, browser: Browser) -> None:
    with Daemon(tmp_path, broker.bootstrap) as daemon:
        send(daemon, *[("topic-3", b"%d" % number) for number in range(9)])
        daemon.wait_settled(9)
        assert daemon.terminate() == 0
        daemon.start()
        assert delivered(daemon, "period=day") > 0
        assert delivered(daemon, "period=month&topic=topic-3") > 0
        assert delivered(daemon, "period=hour&topic=topic-2") == 0
        send(daemon, ("topic-3", b"x"))
        daemon.wait_settled(1)
        open_page(browser, daemon)
        for period in ("day", "month", "hour"):
            browser.find(f"#past [data-period={period}]").click()
            browser.wait(lambda: browser.run(DRAWN, "#chart-past", ".s-out"), f"the last {period}")
        assert not browser.find("#topic").is_displayed()
        browser.find("#topics-table tbody th button").click()
        browser.wait(lambda: browser.run(DRAWN, "#chart-topic", ".s-out"), "the chart of the topic")
        assert browser.text("#topic-h").startswith("topic-3, last")
        for width in WIDTHS:
            browser.resize(width)
            assert_nothing_sticks_out(browser)
        browser.find("#topic-close").click()
        assert not browser.find("#topic").is_displayed()
        assert browser.console_errors() == []


def test_the_page_shows_partitions_without_a_leader(tmp_path: Path, broker: DevBroker, browser: Browser) -> None:
    with Daemon(tmp_path, broker.bootstrap) as daemon:
        send(daemon, *[(topic, b"1") for topic in TOPICS])
        daemon.wait_settled(6)
        open_page(browser, daemon)
        for node in (1, 2):
            broker.broker_down(node)
        for key in range(40):
            daemon.send("topic-0", b"2", partition_key=key)
        browser.wait(lambda: "no leader" in browser.text("#paused-table"), "what waits for a leader")
        wait_state(browser, "warn")
        browser.wait(lambda: "have no leader, of topic-0" in browser.text("#complaints"), "the warning")
        for node in (1, 2):
            broker.broker_up(node)
        daemon.wait_settled(46)
        wait_state(browser, "good")
        assert browser.texts("#paused-table tbody tr") == []


def test_the_page_reports_a_stopped_daemon(tmp_path: Path, broker: DevBroker, browser: Browser) -> None:
    port = ReservedPort()
    with Daemon(tmp_path, broker.bootstrap, {"http.listen": f"127.0.0.1:{port.number}"}) as daemon:
        open_page(browser, daemon)
        wait_state(browser, "good")
        assert daemon.terminate() == 0
        wait_state(browser, "bad")
        words = browser.text("#silence")
        assert "does not answer since" in words
        assert "What is below is of" in words
        assert "no answer" in browser.driver.title
        assert browser.text("#t-in")  # the last figures stay
        daemon.start()
        wait_state(browser, "good")
        assert not browser.find("#silence").is_displayed()
        assert all("ERR_CONNECTION" in each for each in browser.console_errors())
    port.release()


# --- by hand ----------------------------------------------------------------------------------------------------------
def focused(browser: Browser) -> str:
    """Return the focused element, which must show its focus."""
    return str(browser.run("""
        const it = document.activeElement, style = getComputedStyle(it);
        if (it !== document.body && it.id !== "main" && style.outlineStyle === "none") return "focus is not visible";
        return it.id || it.dataset.key || it.textContent;
    """))  # fmt: skip


def press(browser: Browser, *keys: str) -> None:
    for key in keys:
        browser.driver.switch_to.active_element.send_keys(key)


def tab_to(browser: Browser, wanted: str) -> None:
    for _ in range(80):
        if focused(browser) == wanted:
            return
        press(browser, Keys.TAB)
        assert focused(browser) != "focus is not visible"
    pytest.fail(f"There is no way to {wanted} with the tabulator; the focus is on {focused(browser)}")


def test_the_page_is_usable_with_the_keyboard_alone(tmp_path: Path, broker: DevBroker, browser: Browser) -> None:
    with Daemon(tmp_path, broker.bootstrap) as daemon:
        messages = [(topic, b"x") for index, topic in enumerate(TOPICS) for _ in range(index + 1)]
        send(daemon, *messages)
        daemon.wait_settled(21)
        open_page(browser, daemon)
        browser.wait(lambda: len(browser.texts("#topics-table tbody tr")) == 6, "the topics")
        press(browser, Keys.TAB)
        assert focused(browser) == "Skip to the numbers"
        press(browser, Keys.TAB)
        assert focused(browser) == "pause"
        press(browser, Keys.SPACE)
        browser.wait(lambda: browser.text("#updated").startswith("Paused"), "the pause")
        press(browser, Keys.SPACE)
        browser.run("document.body.focus(); document.activeElement.blur(); scrollTo(0, 0)")
        browser.run("document.querySelector('.skip').focus()")
        press(browser, Keys.ENTER)
        browser.wait(lambda: focused(browser) == "main", "the jump over the head")
        browser.wait(
            lambda: "on average" in str(browser.run("return document.querySelector('#minute-s').textContent")), "points"
        )
        tab_to(browser, "chart-minute")
        press(browser, Keys.ARROW_LEFT)
        browser.wait(lambda: "ago" in browser.text("#chart-minute .tip"), "a point in numbers")
        press(browser, Keys.ESCAPE)
        tab_to(browser, "topic-filter")
        press(browser, "ToPiC-3")
        browser.wait(lambda: browser.texts("#topics-table tbody th") == ["topic-3"], "the filter's answer")
        press(browser, *[Keys.BACKSPACE] * 7)
        browser.wait(lambda: len(browser.texts("#topics-table tbody tr")) == 6, "all again")
        tab_to(browser, "topic")
        press(browser, Keys.ENTER)
        browser.wait(lambda: browser.texts("#topics-table tbody th") == list(TOPICS), "topics by name")
        press(browser, Keys.ENTER)
        browser.wait(lambda: browser.texts("#topics-table tbody th") == list(TOPICS[::-1]), "the other way round")
        assert browser.find("#topics-table th[aria-sort=descending]").text.startswith("Topic")
        send(daemon, *messages)  # the rates are those of the last minute
        tab_to(browser, "delivered")
        press(browser, Keys.ENTER)
        browser.wait(lambda: browser.texts("#topics-table tbody th")[0] == "topic-5", "topics by traffic")
        assert focused(browser) == "delivered"


def test_the_page_handles_two_thousand_topics(tmp_path: Path, browser: Browser) -> None:
    names = [f"app-{index}" for index in range(2000)]
    with DevBroker(topics=dict.fromkeys(names, 1)) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        send(daemon, *[(name, b"x" * 20) for name in names], *[("app-1234", b"x")] * 10)
        daemon.wait_settled(2010)
        assert len(daemon.get_text("/overview/json?limit=100000")) < 250_000
        open_page(browser, daemon)
        browser.wait(lambda: browser.text("#topics-count").startswith("50 of 2,000, last "), "the topics")
        browser.wait(
            lambda: browser.texts("#topics-table tbody th")[0] == "app-1234", "the topic with the most traffic"
        )
        browser.find("#topics-more").click()
        browser.wait(
            lambda: len(browser.run("return document.querySelectorAll('#topics-table tbody tr')")) == 500, "more"
        )
        assert not browser.find("#topics-more").is_displayed()
        browser.find("#topic-filter").send_keys("-199")
        browser.wait(lambda: browser.text("#topics-count").startswith("2,000, 11 match, last "), "the filter")
        assert {"app-199", *(f"app-199{digit}" for digit in range(10))} == set(browser.texts("#topics-table tbody th"))


def answers(browser: Browser) -> int:
    """Return the number of answers since the page was hidden or shown again."""
    return int(browser.run("return performance.getEntriesByType('resource').length"))


HIDE: Final = """
    Object.defineProperty(document, "hidden", { configurable: true, get: () => arguments[0] });
    document.dispatchEvent(new Event("visibilitychange"));
    performance.clearResourceTimings();
"""


def test_a_hidden_page_sends_no_requests(tmp_path: Path, broker: DevBroker, browser: Browser) -> None:
    with Daemon(tmp_path, broker.bootstrap) as daemon:
        open_page(browser, daemon)
        browser.run(HIDE.replace("arguments[0]", "true"))
        threading.Event().wait(5)
        assert answers(browser) <= 1  # one request was under way
        browser.run(HIDE.replace("arguments[0]", "false"))
        browser.wait(lambda: answers(browser) >= 2, "two more answers")
