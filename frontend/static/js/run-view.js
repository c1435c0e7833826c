// Writes the words of a run's page: strip, time, ledger, events, processes. Every value becomes text.
import { badge, make, say, svg } from "./dom.js";

const MOST_EVENTS = 200;
const at = (name) => document.querySelector(`[data-${name}]`);

export function drawView(view) {
  say(at("headline"), view.headline);
  say(at("lead"), view.lead);
  view.strip.forEach((cell, i) => drawCell(at("strip").children[i], cell));
  drawTime(view.time);
  if (at("ledger")) drawLedger(view.ledger);
  drawEvents(view.events);
  drawProcesses(view.processes);
  for (const button of document.querySelectorAll("[data-show-when]")) button.hidden = !button.dataset.showWhen.split(" ").includes(view.state);
}

function drawCell(box, cell) {
  if (!box) return;
  say(box.querySelector("dt"), cell.term);
  const look = box.querySelector("[data-look]");
  if (look) {
    if (look.textContent !== cell.value) look.replaceChildren(badge(cell.look, cell.value));
  } else {
    say(box.querySelector("[data-value]"), cell.value);
    say(box.querySelector("[data-unit]"), cell.unit);
  }
  say(box.querySelector("[data-detail]"), cell.detail);
}

export function drawTime(time) {
  const box = at("time");
  say(at("time-words"), time.words);
  if (!time.rows.length) return;
  const chart = box.querySelector(".where");
  let x = 0;
  chart.replaceChildren(...time.rows.map((row) => {
    const width = 1000 * row.seconds / (time.total || 1);
    const part = svg("rect", { class: `f${row.colour}`, x: x.toFixed(1), y: 0, width: Math.max(0.5, width - 1.5).toFixed(1), height: 36 });
    x += width;
    return part;
  }));
  chart.setAttribute("aria-label", time.rows.map((row) => `${row.name} ${row.text}`).join(", "));
  box.querySelector(".key").replaceChildren(...time.rows.map((row) => {
    const swatch = svg("svg", { class: "sw", viewBox: "0 0 10 10", "aria-hidden": "true" });
    swatch.append(svg("rect", { class: `f${row.colour}`, width: 10, height: 10 }));
    return make("li", { title: row.meaning }, swatch, make("span", {}, row.name), make("span", { class: "hint" }, row.text));
  }));
}

function drawLedger(ledger) {
  for (const row of ledger.rows) {
    const [, groups, episodes, meaning] = at("ledger").querySelector(`[data-key="${row.key}"]`).cells;
    say(groups, row.groups);
    say(episodes, row.episodes);
    say(meaning, row.meaning);
  }
  const [, groups, episodes, sum] = at("ledger").querySelector('[data-key="total"]').cells;
  say(groups, ledger.admitted);
  say(episodes, ledger.episodes);
  if (sum.textContent.trim() !== ledger.words) sum.replaceChildren(badge(ledger.adds_up ? "pass" : "fail", ledger.words));
}

function drawEvents(events) {
  const list = at("events");
  const known = new Set([...list.children].map((item) => item.dataset.id));
  for (const event of events) {
    if (known.has(String(event.id))) continue;
    known.add(String(event.id));
    const message = event.href ? make("a", { href: event.href }, event.message) : event.message;
    list.prepend(make("li", { "data-id": event.id }, make("time", {}, event.at), badge(event.state, event.word, event.glyph), make("span", { class: "quiet" }, message)));
  }
  while (list.children.length > MOST_EVENTS) list.lastChild.remove();
}

function drawProcesses(rows) {
  at("processes").replaceChildren(...rows.map((row) => {
    const state = make("td");
    state.append(badge(row.look, row.state));
    return make("tr", {}, make("td", {}, row.name), state, make("td", {}, row.policy), make("td", { class: "num" }, row.use));
  }));
}
