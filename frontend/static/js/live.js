// Keeps a run's page up to date by its websocket: asks for what is new since its cursor, redraws at most 4 times a second.
import { load } from "./api.js";
import { show } from "./charts.js";
import { dataOf, say } from "./dom.js";
import { specOf } from "./run-charts.js";
import { drawTime, drawView } from "./run-view.js";

const REDRAW = 250; // milliseconds
const ASK = 5000;
const QUIET = 15000; // an open socket without an answer for longer is stale
const MOST_WAIT = 15000;

const data = dataOf("run-data");
const figures = [...document.querySelectorAll("figure[data-chart]")];
const pauser = document.querySelector("[data-pause-view]");
const pill = document.querySelector("[data-live]");
const state = { series: new Map(), tables: data.tables, cursor: data.cursor, mark: data.mark, view: data.view, batch: data.batch_size };
let range = 0;
let dirty = false;
let timer = 0;
let socket = null;
let tries = 0;
let heard = Date.now();

/** NaN and infinities come as text; a chart has no place for them. */
const drawn = (value) => typeof value === "number" ? value : null;

function learn(series) {
  for (const { name, steps, values } of series) state.series.set(name, new Map(steps.map((step, i) => [step, drawn(values[i])])));
}

function apply(news) {
  heard = Date.now();
  for (const [, name, step, value] of news.points) {
    if (name.startsWith("group/")) continue;
    if (!state.series.has(name)) state.series.set(name, new Map());
    state.series.get(name).set(step, drawn(value));
  }
  if (news.refetch) load(`/api/v1/runs/${data.run}/metrics/`).then((series) => { learn(series); plan(); }, () => {});
  if (news.tables) state.tables = news.tables;
  state.cursor = news.cursor; // of points: what came is complete up to it, in the order of its commits
  state.mark = news.mark;
  state.view = { ...news.view, events: [...(dirty ? state.view.events : []), ...news.view.events] };
  plan();
}

const held = () => document.hidden || pauser?.getAttribute("aria-pressed") === "true";

function plan() {
  dirty = true;
  if (!timer && !held()) timer = setTimeout(redraw, REDRAW);
}

function redraw() {
  timer = 0;
  if (held()) return;
  dirty = false;
  drawView(state.view);
  drawCharts();
  if (state.view.final && pill) finish();
}

function drawCharts() {
  for (const figure of figures) show(figure, specOf(figure.dataset.chart, state, range));
}

function ask() {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ cursor: state.cursor.points, events: state.cursor.events, mark: state.mark }));
}

function connect() {
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/runs/${data.run}/`);
  socket.addEventListener("open", () => { tries = 0; ask(); });
  socket.addEventListener("message", (event) => apply(JSON.parse(event.data)));
  socket.addEventListener("close", ({ code }) => {
    socket = null;
    if (code === 4401) return location.assign(`/accounts/login/?next=${encodeURIComponent(location.pathname)}`);
    if (code === 4404) return tell("stale", "No longer open to you", "");
    if (state.view.final) return undefined;
    tries += 1;
    return setTimeout(connect, Math.min(MOST_WAIT, 500 * 2 ** tries));
  });
}

/** The run is over: nothing more will come, and the controls change. */
function finish() {
  socket?.close();
  tell("done", "Finished", "");
  setTimeout(() => location.reload(), 1500);
}

function tell(look, word, age) {
  const chip = pill.querySelector("[data-live-badge]");
  chip.className = `badge chip ${look}`;
  say(pill.querySelector("[data-live-word]"), word);
  say(document.querySelector("[data-age]"), age);
}

function tick() {
  if (document.hidden || state.view.final) return;
  const seconds = (Date.now() - heard) / 1000;
  const open = socket?.readyState === WebSocket.OPEN;
  if (open && seconds * 1000 < QUIET) tell("live", "Live", `heard ${seconds < 1 ? "now" : `${seconds.toFixed(0)} s ago`}`);
  else if (tries < 3 && !open) tell("unsure", "Reconnecting", "");
  else tell("stale", "Stale", `since ${new Date(heard).toISOString().slice(11, 19)}`);
}

function pressed(button, on) {
  button.setAttribute("aria-pressed", on);
}

learn(data.series);
drawTime(state.view.time);
drawCharts();
for (const button of document.querySelectorAll("[data-range]")) {
  button.addEventListener("click", () => {
    range = Number(button.value);
    for (const other of document.querySelectorAll("[data-range]")) pressed(other, other === button);
    drawCharts();
  });
}
if (pill) {
  connect();
  setInterval(() => held() || ask(), ASK);
  setInterval(tick, 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) { ask(); plan(); } });
  pauser.addEventListener("click", () => {
    const on = pauser.getAttribute("aria-pressed") !== "true";
    pressed(pauser, on);
    say(pauser, on ? "Resume view" : "Hold view");
    if (!on) { ask(); plan(); }
  });
}
