"""The Flask application of the status pages.

For each request, the application reads a page from the slab into a struct. `/NAME/json` returns the fields of the
struct. `/NAME/plain` returns a text rendered from them, if the page has a text form. `/NAME` returns the text form if
there is one, else JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from flask import Flask, Response, abort, request
from werkzeug.exceptions import HTTPException

from bruce_mp.errors import DiscardReason, SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.producer_id import cluster_of
from bruce_mp.slab.tables import TopicTable
from bruce_mp.status.cached import Cached
from bruce_mp.status.history.history_file import PERIODS, HistoryError
from bruce_mp.status.pages.brokers import brokers_text, read_brokers
from bruce_mp.status.pages.certificates import CertificatesPage, certificates_text, list_certificates
from bruce_mp.status.pages.compression import compression_text
from bruce_mp.status.pages.counters import counters_text, read_counters
from bruce_mp.status.pages.debug_pages import add_debug_pages
from bruce_mp.status.pages.discards import discards_text
from bruce_mp.status.pages.exposition import CONTENT_TYPES, choose_format, render_families
from bruce_mp.status.pages.front_page import add_front_page
from bruce_mp.status.pages.header import read_header, read_server_info, server_info_text
from bruce_mp.status.pages.health import Evidence, assess_health
from bruce_mp.status.pages.held import read_held
from bruce_mp.status.pages.metadata import metadata_text, read_metadata, read_metadata_age
from bruce_mp.status.pages.metrics import read_metrics
from bruce_mp.status.pages.overview import Histories, read_overview, with_topics
from bruce_mp.status.pages.processes import read_processes
from bruce_mp.status.pages.queues import queues_text, read_queues
from bruce_mp.status.pages.senders import read_senders_page, senders_text
from bruce_mp.status.pages.slab_use import largest_topics, read_slab_use
from bruce_mp.status.pages.stalls import find_stalls
from bruce_mp.status.pages.text import stamp, topic_bytes
from bruce_mp.status.pages.topics import TopicSelection
from bruce_mp.status.reports.rolling_file import FileWriteError
from bruce_mp.status.request_guard import guard_change, guard_host
from bruce_mp.telemetry.books import Books, read_books
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.held import read_held_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import ActiveConfig
    from bruce_mp.slab.file import Slab
    from bruce_mp.status.books_check import Verdict
    from bruce_mp.status.broker_status import BrokerStatusStore
    from bruce_mp.status.pages.brokers import BrokersPage
    from bruce_mp.status.pages.compression import CompressionTable
    from bruce_mp.status.pages.discards import DiscardReports
    from bruce_mp.status.pages.header import Page, ServerInfoPage
    from bruce_mp.status.pages.held import HeldPage
    from bruce_mp.status.pages.overview import OverviewSnapshot
    from bruce_mp.status.pages.reload import ReloadRequests
    from bruce_mp.status.reports.debug_files import MessageDebug
    from bruce_mp.telemetry.broker_status import RouterStatus

    _Page = Page | dict[str, Any]

__all__ = ["DaemonView", "create_app"]

MIN_SNAPSHOT_INTERVAL_S: Final = 0.8
"""Shortest time between two snapshots for `/overview`. All clients share a snapshot."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class DaemonView:
    """Data sources of the pages, and the actions that pages may request.

    All members are safe to call from several threads. `active_config` returns the supervisor's report about `config`,
    `lost_socket_files` its report about files that are gone; `books_verdict` returns the result of the last check of
    the books. `now_ms` is the wall clock; `steady_ms` is the steady clock, on which arrivals of messages are recorded.
    """

    slab: Slab
    reports: DiscardReports
    debug: MessageDebug
    compression: CompressionTable
    broker_status: BrokerStatusStore
    histories: Histories
    reloads: ReloadRequests
    config: Callable[[], Config]
    active_config: Callable[[], ActiveConfig]
    lost_socket_files: Callable[[], Sequence[str]]
    count: Callable[[Counter], None]
    refresh_metadata: Callable[[], None]
    accept_cluster: Callable[[str], None]
    books_verdict: Callable[[], Verdict]
    now_ms: Callable[[], int]
    steady_ms: Callable[[], int]

    def evidence(self) -> Evidence:
        """Read all that the health checks need."""
        slab, config, loss_history = self.slab, self.config(), self.histories.losses
        now_ms, steady_ms = self.now_ms(), self.steady_ms()
        cluster = self.broker_status.latest(steady_ms)
        minute_discards, hour_discards = loss_history.last_minute(), loss_history.last_hour()
        keeps_copies = config.discard_log.enable or config.msg_debug.enable
        return Evidence(
            steady_now_ms=steady_ms,
            processes=read_processes(slab, now_ms, steady_ms),
            metadata=read_metadata(slab, now_ms),
            metadata_age_ms=read_metadata_age(slab, steady_ms),
            books=self.books(),  # read after `hour_discards`, so that the books contain all discards of the hour
            cluster=cluster,
            refusals=TopicTable(slab).refusals(),
            slab_use=read_slab_use(slab),
            minute_discards=minute_discards,
            hour_discards=hour_discards,
            lost_copy_count=loss_history.copies_lost_in_last_hour() if keeps_copies else 0,
            failed_accept_count=self.histories.rates.accepts_failed_in_last_minute(),
            certificates=list_certificates(config.kafka.tls, cluster),
            config=config,
            active_config=self.active_config(),
            lost_socket_files=self.lost_socket_files(),
            lost_slab="" if slab.is_at_path else str(slab.path),
            topics_over_share=largest_topics(slab) if minute_discards.get(DiscardReason.TOPIC_OVER_SHARE) else {},
            stalls=find_stalls(cluster, steady_ms, 1000 * config.http.stalled_after_s),
            journaled_ms=slab.read_signed(lay.SUPER_JOURNALED_MS),
        )

    def books(self) -> Books:
        """Read the books, with the result of their last check."""
        checked_ms, unaccounted = self.books_verdict()
        return msgspec.structs.replace(read_books(self.slab), checked=checked_ms, unaccounted=unaccounted)

    def certificates(self) -> CertificatesPage:
        lines = list_certificates(self.config().kafka.tls, self.broker_status.latest(self.steady_ms()))
        return CertificatesPage(**read_header(self.slab, self.now_ms()), certificates=lines)

    def brokers(self) -> BrokersPage:
        steady_ms = self.steady_ms()
        return read_brokers(
            self.slab, self.broker_status.latest(steady_ms), read_held_groups(self.slab), self.now_ms(), steady_ms
        )

    @property
    def router(self) -> RouterStatus | None:
        return self.broker_status.latest(self.steady_ms()).router

    def server_info(self) -> ServerInfoPage:
        return read_server_info(self.slab, self.active_config(), self.router, self.now_ms())

    def guard_change(self) -> None:
        """Abort the current request unless the guard allows it to change state."""
        guard_change(self.config().http)

    def history(self) -> dict[str, Any]:
        """Read the history of the topic and period that the current request names; no topic means the whole daemon."""
        period = request.args.get("period", "hour")
        if period not in PERIODS:
            abort(400, f"period is one of {', '.join(PERIODS)}.")
        topic = request.args.get("topic", "")
        now_ms = self.now_ms()
        series = self.histories.recorder.series(period, topic_bytes(topic), now_ms // 1000)
        return read_header(self.slab, now_ms) | {"period": period, "topic": topic, "series": series}

    def held(self) -> HeldPage:
        """Count the held messages for the page, and pass the counts to the totals by topic."""
        totals = self.histories.totals
        settled = totals.settled_by_topic()  # `observe_held` requires that this comes before the count of held messages
        page = read_held(self.slab, self.now_ms(), self.steady_ms())
        held = [(topic_bytes(line.topic), line.messages) for line in page.topics]
        totals.observe_held(settled, held, self.steady_ms())
        return page


def create_app(daemon: DaemonView) -> Flask:
    app = Flask(__name__, static_folder=None)
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    held, evidence = Cached(daemon.held), Cached(daemon.evidence)
    for name, (read, render_text) in _pages(daemon).items():
        _add_page(app, name, read, render_text)
    app.add_url_rule("/healthz", "healthz", lambda: _healthz(daemon))
    app.add_url_rule("/metrics", "metrics", lambda: _metrics(daemon, evidence(), held()))
    _add_page(app, "held", held, None)
    snapshot = Cached(
        lambda: _read_snapshot(daemon, evidence()),
        clock=lambda: daemon.steady_ms() / 1000,
        min_valid_s=MIN_SNAPSHOT_INTERVAL_S,
    )
    _add_page(app, "overview", lambda: with_topics(snapshot(), _topic_selection()), None)
    add_front_page(app)
    # Dory, which this daemon replaces, serves the first path, but its documentation names the second one.
    for path in ("/metadata_update", "/sys/metadata_update"):
        app.add_url_rule(path, path, lambda: _metadata_update(daemon), methods=["POST"])
    app.add_url_rule("/accept_cluster", "accept_cluster", lambda: _accept_cluster(daemon), methods=["POST"])
    app.add_url_rule("/reload", "reload", lambda: _reload(daemon), methods=["POST"])
    add_debug_pages(app, daemon.debug, daemon.guard_change)
    app.before_request(lambda: daemon.count(Counter.MongooseHttpRequest))  # named after Dory's HTTP server
    app.before_request(lambda: guard_host(daemon.config().http))
    app.after_request(_add_headers)
    app.register_error_handler(HTTPException, lambda error: _http_error(daemon, error))
    app.register_error_handler(SlabError, _slab_error)
    app.register_error_handler(HistoryError, lambda error: _text(f"{error}\n", 503))
    app.register_error_handler(FileWriteError, lambda error: _text(f"{error}\n", 500))
    return app


def _pages(daemon: DaemonView) -> Mapping[str, tuple[Callable[[], _Page], Callable[[Any], str] | None]]:
    """Map the name of each page to its reader, and to the renderer of its text form or None if it has no text form."""
    slab, now_ms, steady_ms = daemon.slab, daemon.now_ms, daemon.steady_ms
    return {
        "server_info": (daemon.server_info, server_info_text),
        "counters": (lambda: read_counters(slab, now_ms(), by_process=_has_argument("by", "process")), counters_text),
        "discards": (lambda: daemon.reports.page(now_ms()), discards_text),
        "queues": (lambda: read_queues(slab, now_ms()), queues_text),
        "metadata_fetch_time": (lambda: read_metadata(slab, now_ms()), metadata_text),
        "compression": (lambda: daemon.compression.page(now_ms()), compression_text),
        "brokers": (daemon.brokers, brokers_text),
        "certificates": (daemon.certificates, certificates_text),
        "senders": (lambda: read_senders_page(slab, now_ms()), senders_text),
        "processes": (lambda: read_processes(slab, now_ms(), steady_ms()), None),
        "books": (lambda: read_header(slab, now_ms()) | msgspec.structs.asdict(daemon.books()), None),
        "history": (daemon.history, None),
    }


def _add_page(app: Flask, name: str, read: Callable[[], _Page], render_text: Callable[[Any], str] | None) -> None:
    responders = {"/json": lambda: _json(read())}
    if render_text is not None:
        responders["/plain"] = lambda: _text(render_text(read()))
    responders[""] = responders.get("/plain", responders["/json"])
    for suffix, respond in responders.items():
        app.add_url_rule(f"/{name}{suffix}", f"{name}{suffix}", respond)


def _has_argument(parameter: str, value: str) -> bool:
    return request.args.get(parameter) == value


def _json(page: _Page, status: int = 200) -> Response:
    return Response(msgspec.json.encode(page), status, mimetype="application/json")


def _text(text: str, status: int = 200) -> Response:
    return Response(text, status, mimetype="text/plain")


def _healthz(daemon: DaemonView) -> Response:
    page = assess_health(daemon.evidence())
    is_well = page.live if _has_argument("probe", "live") else page.ready
    return _json(page, 200 if is_well else 503)


def _metrics(daemon: DaemonView, evidence: Evidence, held: HeldPage) -> Response:
    compression, totals = daemon.compression.page(daemon.now_ms()), daemon.histories.totals
    form = choose_format(request.accept_mimetypes)
    text = render_families(read_metrics(daemon.slab, evidence, compression, held, totals), form)
    return Response(text, headers={"Vary": "Accept"}, content_type=CONTENT_TYPES[form])


def _read_snapshot(daemon: DaemonView, evidence: Evidence) -> OverviewSnapshot:
    now_ms, steady_ms = daemon.now_ms(), daemon.steady_ms()
    reports, compression = daemon.reports.peek(now_ms), daemon.compression.page(now_ms)
    return read_overview(
        daemon.slab, daemon.histories, evidence, reports, compression, now_ms=now_ms, steady_now_ms=steady_ms
    )


def _topic_selection() -> TopicSelection:
    args, defaults = request.args, TopicSelection()
    return TopicSelection(
        text=args.get("topic", defaults.text),
        sort=args.get("sort", defaults.sort),
        ascending=args.get("order") == "ascending",
        limit=args.get("limit", defaults.limit, type=int),
    )


def _metadata_update(daemon: DaemonView) -> Response:
    daemon.guard_change()
    daemon.refresh_metadata()
    return _text(f"Metadata update initiated at {stamp(daemon.now_ms() // 1000)}\n")


def _accept_cluster(daemon: DaemonView) -> Response:
    """Let the router send the held messages to the cluster of the brokers, if `?id=` names this cluster."""
    daemon.guard_change()
    router = daemon.router
    if router is None:
        return _text("The router has not reported the brokers' cluster in the last seconds; try again.\n", 503)
    cluster_id = router.foreign_cluster
    if not cluster_id:
        return _text(f"The brokers belong to the expected cluster {cluster_of(daemon.slab)}.\n", 409)
    if request.args.get("id") != cluster_id:
        return _text(f"The brokers belong to the cluster {cluster_id}; name this id to accept the cluster.\n", 409)
    daemon.accept_cluster(cluster_id)
    return _text(f"The messages are for the cluster {cluster_id} instead of {cluster_of(daemon.slab)}.\n")


def _reload(daemon: DaemonView) -> Response:
    """Request a reload from the supervisor, or with `?check=1` only a check of the configuration file."""
    daemon.guard_change()
    outcome = daemon.reloads.request(only_check=_has_argument("check", "1"))
    if outcome is None:
        return _text("The supervisor has not reported the outcome yet; its log will show it.\n", 504)
    return _text(f"{outcome.text}\n", 200 if outcome.accepted else 409)


def _add_headers(response: Response) -> Response:
    response.headers.update(_HEADERS)
    return response


_SERVER_ERROR: Final = 500
_ERROR_TEXTS: Final = {
    404: "There is no such page here; / lists the pages.",
    405: (
        "This page does not take this method; only /metadata_update, /reload, /accept_cluster and /msg_debug take POST."
    ),
}


def _http_error(daemon: DaemonView, error: HTTPException) -> Response:
    code = error.code or _SERVER_ERROR
    if code >= _SERVER_ERROR:
        daemon.count(Counter.MongooseStdException)
    response = _text(_ERROR_TEXTS.get(code) or str(error.description), code)
    for name, value in error.get_headers():
        if name in {"Allow", "WWW-Authenticate"}:
            response.headers[name] = value
    return response


def _slab_error(error: SlabError) -> Response:
    return _text(f"The slab changed while it was read; try again.  {error}\n", 503)
