// The dashboard: requests overview/json every two seconds, and shows it.
//
// Client data (topics, bytes of messages, errors) is inserted as text, never as markup; the Content-Security-Policy
// forbids the rest.  Elements change in place, so that focus and selection stay.
"use strict";

const INTERVAL_MS = 2000;
const TIMEOUT_MS = 15000;
const MAX_BUSY_ANSWERS = 3; // failed answers before the page shows an outage; 503: the slab changed while it was read
const FIRST_ROWS = 50, MORE_ROWS = 500;
const SHOWN_COMPLAINTS = 5;

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// --- elements --------------------------------------------------------------------------------------------------------

function build(element, attributes = {}, ...children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const createHtml = (tag, ...parts) => build(document.createElement(tag), ...parts);
const createSvg = (tag, ...parts) => build(document.createElementNS(SVG, tag), ...parts);

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// --- text of numbers and times ---------------------------------------------------------------------------------------

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const NONE = "–";

const countText = (number) => WHOLE.format(number);

function rateText(number) {
  if (number === 0) return "0";
  if (number < 0.1) return "<0.1";
  return number < 10 ? number.toFixed(1) : WHOLE.format(number);
}

function sizeText(bytes) {
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit < 4) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit && bytes < 10 && bytes % 1 ? bytes.toFixed(1) : WHOLE.format(bytes)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

function durationText(ms) {
  if (ms === null) return NONE;
  if (ms < 1) return "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 120000) return `${Math.round(ms / 1000)} s`;
  if (ms < 7200000) return `${Math.round(ms / 60000)} min`;
  return ms < 172800000 ? `${Math.round(ms / 3600000)} h` : `${Math.round(ms / 86400000)} d`;
}

const percentText = (part) => (part === 0 ? "0 %" : part > 0 && part < 0.001 ? "<0.1 %" : `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`);

// Returns the time as in the log, without the date if that is today.
function timeText(seconds) {
  const [date, time] = new Date(seconds * 1000).toISOString().split("T");
  const text = `${time.slice(0, 8)} UTC`;
  return date === new Date().toISOString().slice(0, 10) ? text : `${date} ${text}`;
}

const plural = (number, one, many) => `${countText(number)} ${number === 1 ? one : many}`;

// --- tables ----------------------------------------------------------------------------------------------------------

// A column: {key, label, text(row), is?: "number" | "name" | "note", value?(row) to sort by, show?(cell, row), css?(row)}.
const kindOf = (column) => (column.is === "number" ? "n" : column.is || "");

class Table {
  constructor(place, { caption, columns, empty, sort = null, onSort = null }) {
    this.columns = columns;
    this.sort = sort; // {key, ascending}
    this.onSort = onSort; // the caller sorts
    this.rows = [];
    this.empty = createHtml("p", { class: "empty" }, empty);
    this.head = createHtml("tr", { role: "row" });
    this.body = createHtml("tbody", { role: "rowgroup" });
    for (const column of columns) this.head.append(this.createHeading(column));
    this.table = createHtml("table", { role: "table" }, createHtml("caption", { class: "sr" }, caption),
      createHtml("thead", { role: "rowgroup" }, this.head), this.body);
    this.table.hidden = true;
    place.append(this.empty, this.table);
    this.showSortMarks();
  }

  createHeading(column) {
    const heading = createHtml("th", { scope: "col", role: "columnheader", class: column.is === "number" ? "n" : "" });
    if (!column.value) {
      heading.append(column.label);
      return heading;
    }
    const button = createHtml("button", { type: "button", "data-key": column.key }, column.label, createHtml("span", { "aria-hidden": "true" }));
    button.addEventListener("click", () => this.sortBy(column));
    heading.append(button);
    return heading;
  }

  sortBy(column) {
    const isSame = this.sort !== null && this.sort.key === column.key;
    this.sort = { key: column.key, ascending: isSame ? !this.sort.ascending : column.is !== "number" };
    this.showSortMarks();
    if (this.onSort) this.onSort(this.sort);
    else this.show(this.rows);
  }

  showSortMarks() {
    this.columns.forEach((column, index) => {
      if (!column.value) return;
      const sorted = this.sort !== null && this.sort.key === column.key;
      const heading = this.head.children[index];
      heading.setAttribute("aria-sort", !sorted ? "none" : this.sort.ascending ? "ascending" : "descending");
      setText(heading.querySelector("span"), !sorted ? "" : this.sort.ascending ? "▲" : "▼");
    });
  }

  sorted(rows) {
    const column = this.sort && !this.onSort && this.columns.find((each) => each.key === this.sort.key);
    if (!column) return rows;
    const direction = this.sort.ascending ? 1 : -1;
    const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
    return [...rows].sort((one, other) => direction * compare(column.value(one), column.value(other)));
  }

  show(rows) {
    this.rows = rows;
    this.empty.hidden = rows.length > 0;
    this.table.hidden = rows.length === 0;
    while (this.body.children.length > rows.length) this.body.lastElementChild.remove();
    while (this.body.children.length < rows.length) this.body.append(this.createRow());
    this.sorted(rows).forEach((row, index) => this.showRow(this.body.children[index], row));
  }

  createRow() {
    const cells = this.columns.map((column, index) => {
      const kind = kindOf(column);
      if (index === 0) return createHtml("th", { scope: "row", role: "rowheader", class: kind });
      return createHtml("td", { role: "cell", "data-label": column.label, class: kind });
    });
    return createHtml("tr", { role: "row" }, ...cells);
  }

  showRow(line, row) {
    this.columns.forEach((column, index) => {
      const cell = line.children[index];
      const text = column.text(row);
      if (column.show) column.show(cell, row);
      else setText(cell, text);
      const css = column.css ? column.css(row) : "";
      const nothing = text === "" || text === "0" || text === NONE ? "zero" : "";
      const classes = [kindOf(column), css, nothing].filter(Boolean).join(" ");
      if (cell.className !== classes) cell.className = classes;
    });
  }
}

const TREND_WIDTH = 92, TREND_HEIGHT = 22, TREND_MINUTES = 60;

function showTrend(cell, rates) {
  let line = cell.querySelector("svg");
  if (!line) {
    line = createSvg("svg", { class: "spark", viewBox: `0 0 ${TREND_WIDTH} ${TREND_HEIGHT}`, role: "img" }, createSvg("path", { class: "a-out" }), createSvg("path", { class: "s-out" }));
    cell.replaceChildren(line);
  }
  const highest = Math.max(...rates, 1e-9), step = TREND_WIDTH / TREND_MINUTES;
  const first = TREND_WIDTH - step * Math.max(0, rates.length - 1);
  const points = rates.map((each, index) => `${(first + index * step).toFixed(1)},${(20.5 - 19 * each / highest).toFixed(1)}`);
  const enough = points.length > 1;
  line.firstChild.setAttribute("d", enough ? `M${first.toFixed(1)},${TREND_HEIGHT}L${points.join("L")}L${TREND_WIDTH},${TREND_HEIGHT}Z` : "");
  line.lastChild.setAttribute("d", enough ? `M${points.join("L")}` : "");
  line.setAttribute("aria-label", enough ? `messages per second by minute, at most ${rateText(highest)}` : "no full minute yet");
}

// --- charts ----------------------------------------------------------------------------------------------------------

const LEFT = 46, RIGHT = 8; // margins in pixels
const PANES = [
  { top: 14, height: 112, unit: rateText, title: "messages per second", least: 1,
    areas: [["delivered", "a-out"]], lines: [["delivered", "s-out"], ["received", "s-in"], ["discarded", "s-lost"]] },
  { top: 148, height: 42, unit: shortCountText, title: "messages held", least: 1, areas: [["held", "a-held"]], lines: [["held", "s-held"]] },
  { top: 212, height: 42, unit: durationText, title: "receipt to ack", least: 1, areas: [], lines: [["p50_ms", "s-p50"], ["p99_ms", "s-p99"]] },
];
const CHART_HEIGHT = 274;

function shortCountText(number) {
  if (number < 10000) return WHOLE.format(number);
  return number < 1e6 ? `${WHOLE.format(number / 1e3)} k` : `${(number / 1e6).toFixed(number < 1e7 ? 1 : 0)} M`;
}

function axisTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= value * 0.999);
}

// The unit of the ticks, in seconds and by name, for each length of a chart in seconds.
const UNITS = { 60: [1, "s"], 3600: [60, "min"], 86400: [3600, "h"], 2592000: [86400, "d"] };

class Chart {
  constructor(place, summary) {
    this.place = place;
    this.summary = summary;
    this.series = null;
    this.at = null; // index of the point under the cursor
    this.tip = createHtml("div", { class: "tip", "aria-live": "off" });
    this.tip.hidden = true;
    place.append(this.tip);
    place.addEventListener("pointermove", (event) => this.select(this.nearestIndex(event)));
    place.addEventListener("pointerleave", () => this.select(null));
    place.addEventListener("blur", () => this.select(null));
    place.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.redraw()).observe(place);
  }

  x(age) {
    return LEFT + (this.width - LEFT - RIGHT) * (1 - age / this.series.span_s);
  }

  nearestIndex(event) {
    if (!this.series || !this.series.age_s.length) return null;
    const x = event.clientX - this.place.getBoundingClientRect().left;
    const distances = this.series.age_s.map((age) => Math.abs(this.x(age) - x));
    return distances.indexOf(Math.min(...distances));
  }

  onKey(event) {
    const last = this.series ? this.series.age_s.length - 1 : -1;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (event.key === "Escape") this.select(null);
    else if (last >= 0 && event.key === "Home") this.select(0);
    else if (last >= 0 && event.key === "End") this.select(last);
    else if (last >= 0 && step) this.select(Math.min(last, Math.max(0, (this.at === null ? last + 1 : this.at) + step)));
    else return;
    this.tip.setAttribute("aria-live", "polite");
    event.preventDefault();
  }

  select(index) {
    this.at = index;
    this.redraw();
  }

  show(series) {
    this.series = series;
    this.redraw();
    setText(this.summary, this.summaryText());
  }

  summaryText() {
    const { received, delivered, discarded } = this.series;
    if (!received.length) return "Nothing measured yet.";
    const mean = (rates) => rates.reduce((sum, each) => sum + each, 0) / rates.length;
    const part = (name, rates) => `${name} ${rateText(mean(rates))} per second on average, at most ${rateText(Math.max(...rates))}`;
    return `${part("in", received)}; ${part("delivered", delivered)}; ${part("discarded", discarded)}. Arrow keys show single points.`;
  }

  redraw() {
    this.width = this.place.clientWidth;
    if (!this.series || this.width < 100) return;
    const picture = createSvg("svg", { viewBox: `0 0 ${this.width} ${CHART_HEIGHT}`, height: CHART_HEIGHT, "aria-hidden": "true" });
    for (const pane of PANES) this.drawPane(picture, pane);
    this.drawTimes(picture);
    if (this.at !== null && this.at < this.series.age_s.length) this.drawCursor(picture);
    else this.tip.hidden = true;
    const old = this.place.querySelector("svg");
    if (old) old.replaceWith(picture);
    else this.place.prepend(picture);
  }

  drawPane(picture, pane) {
    const { top, height } = pane, bottom = top + height, right = this.width - RIGHT;
    const values = pane.lines.flatMap(([name]) => this.series[name]).filter((each) => each !== null);
    const highest = axisTop(Math.max(pane.least, ...values));
    const y = (value) => bottom - height * value / highest;
    this.drawGaps(picture, top, height);
    for (const part of height > 80 ? [0, 0.5, 1] : [0, 1]) {
      const at = bottom - part * height;
      picture.append(createSvg("line", { class: "grid", x1: LEFT, x2: right, y1: at, y2: at }));
      if (part) picture.append(createSvg("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, pane.unit(part * highest)));
    }
    picture.append(createSvg("text", { x: LEFT, y: top - 4 }, pane.title));
    for (const [name, css] of pane.areas) {
      for (const points of this.pieces(name, y)) {
        const [first] = points[0], [last] = points[points.length - 1];
        picture.append(createSvg("path", { class: css, d: `M${first},${bottom}L${points.join("L")}L${last},${bottom}Z` }));
      }
    }
    for (const [name, css] of pane.lines) {
      if (name === "discarded" && !this.series.discarded.some(Boolean)) continue;
      for (const points of this.pieces(name, y)) {
        const [firstX, firstY] = points[0];
        picture.append(createSvg("path", { class: css, d: points.length > 1 ? `M${points.join("L")}` : `M${firstX - 2},${firstY}h4` }));
      }
    }
  }

  drawGaps(picture, top, height) {
    const { age_s, step_s, span_s } = this.series;
    age_s.forEach((age, index) => {
      if (index > 0 && !this.isGap(index)) return;
      const from = index > 0 ? this.x(age_s[index - 1]) : LEFT, width = this.x(Math.min(age + step_s, span_s)) - from;
      if (width > 1) picture.append(createSvg("rect", { class: "before", x: from, y: top, width, height }));
    });
  }

  // Returns true if steps are missing before a row.  Samples of a second are less regular.
  isGap(index) {
    const { age_s, step_s, span_s } = this.series;
    return age_s[index - 1] - age_s[index] > (span_s > 60 ? 1.5 : 3) * step_s;
  }

  pieces(name, y) {
    const pieces = [[]];
    this.series[name].forEach((value, index) => {
      if (value === null || index > 0 && this.isGap(index)) pieces.push([]);
      if (value !== null) pieces[pieces.length - 1].push([this.x(this.series.age_s[index]).toFixed(1), y(value).toFixed(1)].map(Number));
    });
    return pieces.filter((piece) => piece.length > 0);
  }

  drawTimes(picture) {
    const [seconds, name] = UNITS[this.series.span_s];
    for (const part of [1, 0.75, 0.5, 0.25, 0]) {
      const age = part * this.series.span_s, x = this.x(age);
      const anchor = part === 1 ? "start" : part === 0 ? "end" : "middle";
      const label = part === 0 ? "now" : `−${age / seconds} ${name}`;
      if (part !== 0.75 && part !== 0.25 || this.width > 420) {
        picture.append(createSvg("text", { x, y: CHART_HEIGHT - 5, "text-anchor": anchor }, label));
      }
    }
  }

  drawCursor(picture) {
    const { series, at } = this;
    const x = this.x(series.age_s[at]);
    picture.append(createSvg("line", { class: "cursor", x1: x, x2: x, y1: 14, y2: CHART_HEIGHT - 20 }));
    const when = series.span_s > 3600 ? `, ${timeText(tables.page.now - series.age_s[at])}` : "";
    const lines = [`${durationText(series.age_s[at] * 1000)} ago${when}`, `in ${rateText(series.received[at])}/s`,
      `delivered ${rateText(series.delivered[at])}/s`, `discarded ${rateText(series.discarded[at])}/s`, `held ${countText(series.held[at])}`];
    if (series.p99_ms[at] !== null) lines.push(`99 % within ${durationText(series.p99_ms[at])}, 50 % ${durationText(series.p50_ms[at])}`);
    setText(this.tip, lines.join("\n"));
    this.tip.hidden = false;
    const room = this.width - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(0, Math.min(x + 10, room > x + 10 ? x + 10 : x - this.tip.offsetWidth - 10))}px`;
  }
}

// A chart of the last hour, day or month, of the daemon or of a topic.
class HistoryChart {
  constructor(name, figure) {
    this.figure = figure;
    this.topic = null; // null for the daemon
    this.period = "hour";
    this.requestedMs = 0; // of performance.now(), 0 to request at once
    this.requests = 0;
    this.chart = new Chart($(`chart-${name}`), $(`${name}-s`));
    for (const each of ["hour", "day", "month"]) {
      const button = createHtml("button", { type: "button", "data-period": each }, each);
      button.addEventListener("click", () => this.choose(each));
      figure.querySelector(".periods").append(button, " ");
    }
    this.choose(this.period);
  }

  choose(wanted) {
    this.period = wanted;
    for (const button of this.figure.querySelectorAll("[data-period]")) {
      button.setAttribute("aria-pressed", String(button.dataset.period === wanted));
    }
    this.requestedMs = 0;
    if (tables.page) this.show(tables.page);
  }

  open(topic) {
    this.topic = topic;
    this.figure.hidden = false;
    setText(this.figure.querySelector("code"), topic || "(all others)");
    this.choose(this.period);
    this.figure.scrollIntoView({ block: "nearest" });
  }

  show(page) {
    if (this.figure.hidden) return;
    if (this.topic === null && this.period === "hour") this.chart.show(page.history.hour);
    else if (performance.now() - this.requestedMs > 30000 || !this.requestedMs) this.refresh();
  }

  async refresh() {
    this.requestedMs = performance.now();
    const current = this.requests += 1;
    const query = new URLSearchParams({ period: this.period, topic: this.topic === "" ? "(other)" : this.topic ?? "" });
    try {
      const answer = await fetch(`history/json?${query}`, { cache: "no-store" });
      if (answer.ok && current === this.requests) this.chart.show((await answer.json()).series);
    } catch { /* the page says that there is no answer, and asks again */ }
  }
}

// --- the parts of the page -------------------------------------------------------------------------------------------

function showTile(id, number, unit, note, css = "") {
  const place = $(`t-${id}`);
  if (place.dataset.shown !== number + unit) {
    place.replaceChildren(number, createHtml("span", {}, unit));
    place.dataset.shown = number + unit;
  }
  place.className = css;
  setText($(`t-${id}-note`), note);
}

// Returns the window of all rates and latencies, which is shorter after a start of the status process.
function lastMinute(page) {
  return page.flow.seconds < 49 ? `last ${WHOLE.format(page.flow.seconds)} s` : "last minute";
}

function showTiles(page) {
  const { flow, books, slab, latency } = page;
  const held = Object.values(books.held).reduce((sum, each) => sum + each, 0);
  setText($("window"), `rates and latencies: ${lastMinute(page)}`);
  const minute = page.discards.reasons.reduce((sum, each) => sum + each.minute, 0);
  const faults = page.discards.reasons.some((each) => each.is_fault && each.minute > 0);
  const used = slab.in_use / slab.size;
  showTile("in", rateText(flow.received), "/s", `${countText(books.received)} in all`);
  showTile("out", rateText(flow.delivered), "/s", `${sizeText(flow.size)}/s`);
  showTile("lost", countText(minute), "", `last minute; ${countText(books.discarded)} in all`, minute ? (faults ? "bad" : "warn") : "");
  showTile("held", countText(held), "", `${countText(books.held.in_flight)} of them in flight`);
  showTile("oldest", page.oldest_ms === null ? NONE : durationText(page.oldest_ms), "", page.oldest_ms === null ? "nothing is held" : "since its receipt");
  showTile("delay", durationText(latency.minute.p99_ms), "",
    latency.minute.messages ? `50 % within ${durationText(latency.minute.p50_ms)}` : "no acks in the last minute");
  showTile("slab", percentText(used), "", `${sizeText(slab.in_use)} of ${sizeText(slab.size)}`, used >= 0.9 ? "bad" : used >= 0.75 ? "warn" : "");
}

function showBooks(page) {
  const { books } = page;
  const held = Object.values(books.held).reduce((sum, each) => sum + each, 0);
  const parts = [["received", books.received, "= "], ["delivered", books.delivered, "+ "], ["discarded", books.discarded, "+ "], ["held", held, ""]];
  const verdict = { true: ["they balance", "good"], false: ["they do NOT balance", "bad"], null: ["changed during the reading", "quiet"] };
  const [words, css] = verdict[String(books.balanced)];
  const line = parts.flatMap(([name, number, then]) => [createHtml("span", {}, `${name} `, createHtml("b", {}, countText(number))), ` ${then}`]);
  const twice = books.possible_duplicates ? [` ${plural(books.possible_duplicates, "message", "messages")} possibly delivered twice.`] : [];
  $("books").replaceChildren("The books: ", ...line, " – ", createHtml("span", { class: css }, words), ".", ...twice);
}

function showHead(page) {
  const { health } = page;
  const bad = health.problems.length, warnings = health.warnings.length;
  const state = bad || !health.ready ? "bad" : warnings ? "warn" : "good";
  const words = { bad: `✖ ${plural(bad, "problem", "problems")}`, warn: `▲ ${plural(warnings, "warning", "warnings")}`, good: "✔ healthy" };
  $("state").dataset.state = state;
  setText($("state"), words[state]);
  setText($("host"), `on ${page.host}`);
  setText($("which"), `${page.version}, pid ${page.pid}, up since ${timeText(page.since)}`);
  document.title = `${words[state]}: bruce on ${page.host}`;
  const complaints = [...health.problems.map((text) => ["problem", "Problem:", text, health.entries[text]]),
    ...health.warnings.map((text) => ["warning", "Warning:", text, health.entries[text]])];
  const more = complaints.slice(SHOWN_COMPLAINTS);
  showComplaints($("complaints"), complaints.slice(0, SHOWN_COMPLAINTS));
  showComplaints($("more-complaints").querySelector("ul"), more);
  $("more-complaints").hidden = more.length === 0;
  setText($("more-complaints").querySelector("summary"), `${more.length} more`);
}

// The sentences change every second, and the links in them keep the focus.
function showComplaints(place, complaints) {
  place.hidden = complaints.length === 0;
  while (place.children.length > complaints.length) place.lastElementChild.remove();
  while (place.children.length < complaints.length) {
    place.append(createHtml("li", {}, createHtml("b"), createHtml("span"), " ", createHtml("a", {}, "What to do")));
  }
  complaints.forEach(([css, word, text, entry], index) => {
    const item = place.children[index], link = item.querySelector("a");
    item.className = css;
    setText(item.querySelector("b"), word);
    setText(item.querySelector("span"), text);
    link.hidden = !entry;
    link.setAttribute("href", entry);
  });
}

const numberColumn = (key, label, unit) => ({ key, label, is: "number", value: (row) => row[key] ?? -1, text: (row) => unit(row[key]) });
const latencyColumn = { key: "p99_ms", label: "50 / 99 % within", is: "number", value: (row) => row.p99_ms ?? -1,
  text: (row) => (row.p99_ms === null ? NONE : `${durationText(row.p50_ms)} / ${durationText(row.p99_ms)}`) };
const agoText = (page, at) => (at === null ? "" : ` (${durationText(Math.max(0, page.now - at) * 1000)} ago)`);
const errorsOf = (row) => (row.errors ? "bad" : "");

// The name of a topic opens its chart.
function showName(cell, row) {
  let button = cell.querySelector("button");
  if (!button) {
    button = createHtml("button", { type: "button", title: "Show its chart" });
    button.addEventListener("click", () => charts.topic.open(button.dataset.topic));
    cell.append(button);
  }
  button.dataset.topic = row.topic;
  setText(button, row.topic || "(all others)");
}

const NOTHING_PAUSED = "Nothing is paused. A partition or a broker that is not sent to for a while is listed here, with the reason.";

function makeTables() {
  const brokers = new Table($("brokers-table"), {
    caption: "Brokers", sort: { key: "node", ascending: true },
    empty: "No broker is known yet. All brokers of the cluster are listed here as soon as one of kafka.bootstrap_servers has given its metadata.",
    columns: [
      { key: "node", label: "Broker", is: "name", value: (row) => row.node, text: (row) => `${row.node} at ${row.address || "an unknown address"}` },
      { key: "connection", label: "Connection", value: (row) => row.connection, text: (row) => row.connection,
        css: (row) => ({ connected: "good", failed: "bad" })[row.connection] ?? "" },
      numberColumn("delivered", "Delivered/s", rateText),
      { key: "trend", label: "Last hour", text: (row) => (row.trend.length > 1 ? "trend" : NONE), show: (cell, row) => showTrend(cell, row.trend) },
      latencyColumn,
      numberColumn("in_flight", "In flight", countText), numberColumn("queued", "Waiting", countText),
      { key: "oldest_ms", label: "Oldest", is: "number", value: (row) => row.oldest_ms ?? -1, text: (row) => durationText(row.oldest_ms) },
      { key: "errors_hour", label: "Errors min / h", is: "number", value: (row) => row.errors_hour,
        text: (row) => (row.errors_hour ? `${countText(row.errors_minute)} / ${countText(row.errors_hour)}` : "0"), css: (row) => (row.errors_minute ? "bad" : "") },
      { key: "last_error", label: "Last error", is: "note", text: (row) => (row.troubles.length ? `${row.troubles.length} partitions: ${row.troubles[0].error}` : row.last_error ? `${row.last_error}${agoText(tables.page, row.last_error_at)}` : "") },
    ],
  });
  const paused = new Table($("paused-table"), {
    caption: "Paused", empty: "Not known yet.",
    columns: [
      { key: "scope", label: "What", is: "name", value: (row) => row.scope, text: (row) => row.scope },
      { key: "state", label: "State", text: (row) => row.state },
      { key: "since", label: "For", is: "number", value: (row) => -row.since, text: (row) => durationText(Math.max(0, tables.page.now - row.since) * 1000) },
      { key: "reason", label: "Reason", is: "note", text: (row) => row.reason },
    ],
  });
  const topics = new Table($("topics-table"), {
    caption: "Topics", sort: { key: "delivered", ascending: false }, onSort: () => { showSort(); refresh(); },
    empty: "No topic yet. A topic is listed here from its first message on.",
    columns: [
      { key: "topic", label: "Topic", is: "name", value: (row) => row.topic, text: (row) => row.topic || "(all others)", show: showName },
      numberColumn("delivered", "Delivered/s", rateText),
      { key: "size", label: "Bytes/s", is: "number", value: (row) => row.size, text: (row) => (row.size ? sizeText(row.size) : "0") },
      latencyColumn,
      numberColumn("in_flight", "In flight", countText), numberColumn("waiting", "Waiting", countText), numberColumn("oldest_ms", "Oldest", durationText),
      { key: "paused", label: "Paused", is: "number", value: (row) => row.paused, text: (row) => (row.paused === null ? NONE : countText(row.paused)), css: (row) => (row.paused ? "warn" : "") },
      { key: "errors", label: "Errors/min", is: "number", value: (row) => row.errors, text: (row) => countText(row.errors), css: errorsOf },
      { key: "discarded", label: "Discarded", is: "number", value: (row) => row.discarded, text: (row) => countText(row.discarded), css: (row) => (row.discarded ? "bad" : "") },
      { key: "partitions", label: "Partitions", is: "number", value: (row) => row.partitions, text: (row) => (row.partitions ? countText(row.partitions) : "unknown") },
      { key: "last_error", label: "Last error", is: "note", text: (row) => (row.last_error ? `${row.last_error}${agoText(tables.page, row.last_error_at)}` : "") },
    ],
  });
  const reasons = new Table($("reasons-table"), {
    caption: "Discards by reason", sort: { key: "minute", ascending: false },
    empty: "Nothing was discarded. Reasons, topics and samples of what had to be given up are shown here.",
    columns: [
      { key: "reason", label: "Reason", is: "name", value: (row) => row.reason, text: (row) => row.reason },
      { ...numberColumn("minute", "Last minute", countText), css: (row) => (row.minute ? (row.is_fault ? "bad" : "warn") : "") },
      numberColumn("hour", "Last hour", countText), numberColumn("total", "In all", countText),
      { key: "meaning", label: "What it means, and the remedy", is: "note", text: (row) => row.meaning },
    ],
  });
  const compression = new Table($("compression-table"), {
    caption: "Compression by topic", sort: { key: "plain_bytes", ascending: false },
    empty: "No batch was compressed since the status process started. Ratios by topic are shown here when [compression] in the configuration names a codec.",
    columns: [
      { key: "topic", label: "Topic", is: "name", value: (row) => row.topic, text: (row) => row.topic || "(all others)" },
      { key: "codec", label: "Codec", value: (row) => row.codec, text: (row) => row.codec },
      { key: "ratio", label: "Ratio", is: "number", value: (row) => -row.percent, text: (row) => (row.packed_bytes ? `${(row.plain_bytes / row.packed_bytes).toFixed(1)} : 1` : NONE) },
      numberColumn("plain_bytes", "Before", sizeText), numberColumn("packed_bytes", "After", sizeText),
      numberColumn("tried", "Batches tried", countText), numberColumn("kept", "Worth it", countText), numberColumn("skipped", "Not tried", countText),
      { key: "cpu_ms", label: "CPU", is: "number", value: (row) => row.cpu_ms, text: (row) => durationText(row.cpu_ms) },
    ],
  });
  const processes = new Table($("processes-table"), {
    caption: "Processes", empty: "Not known yet.",
    columns: [
      { key: "name", label: "Process", is: "name", value: (row) => row.name, text: (row) => row.name },
      { key: "state", label: "State", value: (row) => row.state, text: (row) => row.state, css: (row) => ({ running: "good", dead: "bad", stalled: "bad" })[row.state] ?? "" },
      { key: "pid", label: "pid", is: "number", value: (row) => row.pid, text: (row) => (row.pid ? String(row.pid) : NONE) },
      numberColumn("restarts", "Restarts", countText),
      { key: "cpu", label: "CPU", is: "number", value: (row) => cpuOf(row) ?? -1, text: (row) => (cpuOf(row) === null ? NONE : percentText(cpuOf(row))) },
      { key: "cpu_seconds", label: "CPU time", is: "number", value: (row) => row.cpu_seconds ?? -1, text: (row) => (row.cpu_seconds === null ? NONE : durationText(row.cpu_seconds * 1000)) },
      { key: "pss", label: "Memory", is: "number", value: (row) => row.pss ?? -1, text: (row) => (row.pss === null ? NONE : sizeText(row.pss)) },
      { key: "connections", label: "Connections", is: "number", value: (row) => row.connections ?? -1, text: (row) => (row.connections === null ? "" : countText(row.connections)) },
    ],
  });
  return { brokers, paused, topics, reasons, compression, processes, page: null };
}

function showBrokers(page) {
  tables.brokers.show(page.brokers);
  const failed = page.brokers.filter((broker) => broker.connection === "failed").length;
  const kinds = [...new Set(page.brokers.map((broker) => broker.delivery))].filter((each) => each !== "not known yet");
  const inRouter = page.paused_count ? page.books.held.router : 0;
  const waiting = inRouter ? [`${plural(inRouter, "message waits", "messages wait")} in the router`] : [];
  const parts = [String(page.brokers.length), ...(failed ? [`${failed} failed`] : []), lastMinute(page), ...waiting,
    ...(kinds.length ? [`delivery ${kinds.join(" and ")}`] : [])];
  setText($("brokers-count"), page.brokers.length ? parts.join(", ") : "");
  const error = $("metadata-error");
  error.hidden = page.metadata_failing_since === null;
  if (!error.hidden) setText(error, `No broker gives metadata since ${timeText(page.metadata_failing_since)}: ${page.metadata_error}`);
  tables.paused.show(page.paused);
  setText(tables.paused.empty, page.paused_count === null ? "Not known yet: the router has not reported." : NOTHING_PAUSED);
  const more = page.paused_count > page.paused.length;
  setText($("paused-count"), page.paused_count ? `${countText(page.paused_count)}${more ? `, ${page.paused.length} of them listed` : ""}` : "");
}

function showTopics(page) {
  const { shown, matching, total } = page.topics;
  tables.topics.show(shown);
  setText(tables.topics.empty, total ? "No topic has that in its name." : "No topic yet. A topic is listed here from its first message on.");
  const filtered = matching < total ? `, ${countText(matching)} match` : "";
  setText($("topics-count"), total ? `${shown.length < matching ? `${countText(shown.length)} of ` : ""}${countText(total)}${filtered}, ${lastMinute(page)}` : "");
  $("topics-more").hidden = shown.length >= matching || selection.limit >= MORE_ROWS;
}

function createBar(parts, whole) {
  return createHtml("div", { class: "bar", "aria-hidden": "true" }, ...parts.map(([css, bytes]) => {
    const piece = createHtml("i", { class: css });
    piece.style.width = `${100 * bytes / whole}%`;
    return piece;
  }));
}

function showSlab(page) {
  const { slab } = page;
  const line = (name, parts, whole, words) => createHtml("div", {}, createHtml("span", {}, name), createBar(parts, whole), createHtml("span", { class: "num" }, words));
  const used = slab.in_use / slab.size;
  const css = used >= 0.9 ? "full" : used >= 0.75 ? "filling" : "used";
  const rows = [line("All", [[css, slab.in_use], ["settled", slab.settled]], slab.size, `${sizeText(slab.in_use)} in use, ${sizeText(slab.size - slab.in_use)} free`)];
  for (const each of slab.classes) {
    const name = `places up to ${sizeText(each.bytes)}`;
    const words = `${sizeText(each.in_use)} in use, ${plural(each.places, "place", "places")}`;
    rows.push(line(name, [["used", each.in_use], ["settled", each.settled]], slab.size, words));
  }
  const key = createHtml("p", { class: "key" },
    createHtml("span", {}, createBar([["used", 1]], 1), "messages that wait or are in flight"),
    createHtml("span", {}, createBar([["settled", 1]], 1), "delivered or discarded, to be used again"),
    createHtml("span", {}, createBar([], 1), "free"));
  const note = slab.classes.length ? `A message larger than ${sizeText(slab.chunk)} has a place of its own; smaller ones share one, which is larger for a busy topic. Each bar is the whole slab.`
    : "The slab is empty. Held messages are shown here by the size of their places.";
  $("slab-bars").replaceChildren(createHtml("div", { class: "bars" }, ...rows), key, createHtml("p", { class: "quiet" }, note));
  setText($("slab-size"), sizeText(slab.size));
}

const PRINTABLE = new TextDecoder("utf-8", { fatal: true });

function bytesAsText(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  try {
    const text = PRINTABLE.decode(bytes);
    if (!/[\u0000-\u001f\u007f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/.test(text)) return text;
  } catch { /* not UTF-8: shown byte by byte */ }
  return Array.from(bytes, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : `\\x${byte.toString(16).padStart(2, "0")}`)).join("");
}

function showDiscards(page) {
  const { reasons, topics, topic_count, samples, culprits, since } = page.discards;
  tables.reasons.show(reasons);
  setText($("discards-total"), page.books.discarded ? `${countText(page.books.discarded)} in all` : "");
  const content = JSON.stringify([topics, samples, culprits, since]);
  if ($("samples").dataset.shown === content) return;
  $("samples").dataset.shown = content;
  const byTopic = topics.map((each) => createHtml("li", {}, createHtml("b", {}, countText(each.count)), createHtml("code", {}, each.topic || "(all others)"),
    createHtml("span", { class: "quiet" }, ` ${Object.entries(each.reasons).map(([reason, number]) => `${reason} ${countText(number)}`).join(", ")}`)));
  const heading = (text, note) => createHtml("h3", {}, text, " ", createHtml("small", { class: "quiet" }, note));
  const list = (items) => createHtml("ul", { class: "samples" }, ...items);
  $("discards-topics").replaceChildren(...(byTopic.length
    ? [heading("By topic", `${topics.length < topic_count ? `${topics.length} of ${countText(topic_count)}, ` : ""}since ${timeText(since)}`), list(byTopic)] : []));
  const shown = samples.map((each) => createHtml("li", {}, createHtml("b", {}, each.reason), createHtml("code", {}, each.topic ?? bytesAsText(each.data))));
  const senders = culprits.map((each) => createHtml("li", {}, createHtml("b", {}, each.reason), `${plural(each.count, "message", "messages")} by process ${each.pid} `,
    createHtml("code", {}, each.command), ` of user ${each.uid}`));
  $("samples").replaceChildren(...(shown.length ? [heading("Samples", `the newest of each kind, since ${timeText(since)}`), list(shown)] : []),
    ...(senders.length ? [heading("Sent by", "local processes"), list(senders)] : []));
}

function showCompression(page) {
  const { codecs, topics, topic_count } = page.compression;
  tables.compression.show(topics);
  const parts = codecs.map((each) => `${each.codec}: ${sizeText(each.plain_bytes)} to ${sizeText(each.packed_bytes)} (${each.percent} %)`);
  const listed = new Set(topics.map((each) => each.topic)).size;  // a topic has a line for each codec
  if (listed < topic_count) parts.push(`${listed} of ${countText(topic_count)} topics listed`);
  setText($("compression-note"), parts.join("; "));
}

// The share of a core that a process uses follows from its CPU time in two answers.
let cpuBefore = new Map(), cpuNow = new Map();
const cpuKey = (row) => `${row.name} ${row.pid}`;

function recordCpu(page) {
  const at = performance.now();
  cpuBefore = cpuNow;
  cpuNow = new Map(page.processes.map((row) => [cpuKey(row), [at, row.cpu_seconds]]));
}

function cpuOf(row) {
  const before = cpuBefore.get(cpuKey(row)), now = cpuNow.get(cpuKey(row));
  if (!before || !now || before[1] === null || now[1] === null || now[0] === before[0]) return null;
  return Math.max(0, now[1] - before[1]) / ((now[0] - before[0]) / 1000);
}

function show(page) {
  tables.page = page;
  recordCpu(page);
  showHead(page);
  showTiles(page);
  showBooks(page);
  charts.minute.show(page.history.minute);
  charts.history.show(page);
  charts.topic.show(page);
  showBrokers(page);
  showTopics(page);
  showSlab(page);
  showDiscards(page);
  showCompression(page);
  tables.processes.show(page.processes.filter((row) => row.state !== "stopped"));
}

// --- requests --------------------------------------------------------------------------------------------------------

const selection = { text: "", limit: FIRST_ROWS };
let tables, charts, version = null;
let timer = 0, request = null, lastAnswer = 0, silentSince = 0, failures = 0, isPaused = false;

function overviewAddress() {
  const { key, ascending } = tables.topics.sort;
  const query = new URLSearchParams({ sort: key, order: ascending ? "ascending" : "descending", limit: selection.limit });
  if (selection.text) query.set("topic", selection.text);
  return `overview/json?${query}`;
}

async function refresh() {
  clearTimeout(timer);
  if (request) request.abort();
  const current = request = new AbortController();
  const timeout = setTimeout(() => current.abort(new Error("no answer")), TIMEOUT_MS);
  try {
    const answer = await fetch(overviewAddress(), { signal: current.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}: ${(await answer.text()).slice(0, 300)}`);
    const page = await answer.json();
    if (current === request) onPage(page);
  } catch (error) {
    if (current === request) onFailure(error);
  } finally {
    clearTimeout(timeout);
    if (current === request) {
      request = null;
      if (!isPaused && !document.hidden) timer = setTimeout(refresh, INTERVAL_MS);
    }
  }
}

function onPage(page) {
  if (version !== null && version !== page.version) {
    location.reload(); // this script may not fit another release
    return;
  }
  version = page.version;
  lastAnswer = Date.now();
  silentSince = failures = 0;
  show(page);
  showOutage("");
}

function onFailure(error) {
  failures += 1;
  if (String(error.message).startsWith("status") && failures < MAX_BUSY_ANSWERS) return;
  silentSince = silentSince || Date.now();
  const words = String(error.message).startsWith("status") ? error.message : "there is no connection";
  showOutage(words);
}

let outage = "";

function showOutage(words) {
  outage = words;
  document.body.classList.toggle("stale", words !== "");
  if (words) {
    $("state").dataset.state = "bad";
    setText($("state"), "✖ no answer");
    document.title = "✖ no answer: bruce";
  }
  showClock();
}

// Shows the age of the data; runs once a second.
function showClock() {
  const banner = $("silence");
  banner.hidden = outage === "";
  if (outage) {
    const old = lastAnswer ? ` What is below is of ${timeText(lastAnswer / 1000)}.` : "";
    const remedy = "See whether it runs: bruce status on its host, and the log.";
    setText(banner, `The daemon does not answer since ${timeText(silentSince / 1000)}: ${outage}.${old} ${remedy}`);
  }
  setText($("updated"), lastAnswer ? `${isPaused ? "Paused; of" : "As of"} ${timeText(lastAnswer / 1000)}` : "");
}

function pause(wanted) {
  isPaused = wanted;
  $("pause").setAttribute("aria-pressed", String(wanted));
  showClock();
  if (wanted) clearTimeout(timer);
  else refresh();
}

// The only change that the page makes.  It keeps a token, if the daemon wants one, in its input field only.
async function fetchMetadata(event) {
  event.preventDefault();
  const token = String.fromCharCode(...new TextEncoder().encode($("token").value)); // a header takes bytes
  let words = "The daemon does not answer.";
  try {
    const answer = await fetch("metadata_update", { method: "POST", headers: token ? { Authorization: `Bearer ${token}` } : {} });
    words = await answer.text();
    if (answer.status === 401 || answer.status === 403) {
      $("token-label").hidden = false;
      $("token").focus();
    }
  } catch { /* the initial text stays */ }
  setText($("fetch-answer"), words.trim());
}

function showSort() {
  $("topic-sort").value = tables.topics.sort.key;
}

function addListeners() {
  $("pause").addEventListener("click", () => pause(!isPaused));
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else if (!isPaused) refresh();
  });
  for (const column of tables.topics.columns.filter((each) => each.value)) {
    $("topic-sort").append(createHtml("option", { value: column.key }, column.label));
  }
  showSort();
  $("topic-sort").addEventListener("change", (event) => {
    tables.topics.sort = null; // so that sortBy chooses the usual order of the column
    tables.topics.sortBy(tables.topics.columns.find((each) => each.key === event.target.value));
  });
  let typing = 0;
  $("topic-filter").addEventListener("input", (event) => {
    selection.text = event.target.value;
    selection.limit = FIRST_ROWS;
    clearTimeout(typing);
    typing = setTimeout(refresh, 250);
  });
  $("topics-tools").addEventListener("submit", (event) => event.preventDefault());
  $("topic-close").addEventListener("click", () => { $("topic").hidden = true; });
  $("topics-more").addEventListener("click", () => {
    selection.limit = MORE_ROWS;
    refresh();
  });
  $("fetch-metadata").addEventListener("submit", fetchMetadata);
  setInterval(showClock, 1000);
}

tables = makeTables();
charts = {
  minute: new Chart($("chart-minute"), $("minute-s")),
  history: new HistoryChart("past", $("past")),
  topic: new HistoryChart("topic", $("topic")),
};
addListeners();
refresh();
