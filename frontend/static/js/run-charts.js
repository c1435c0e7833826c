// What each chart of a run shows, from the run's series and the tables measured from stored episodes. Pure.
const fixed = (value, digits = 2) => value === null || value === undefined ? "–" : value.toFixed(digits);
const share = (value) => fixed(value).replace(/^0\./, ".");
const percent = (value) => `${Math.round(100 * value)} %`;
const seconds = (value) => value === null || value === undefined ? "–" : value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2);
const positive = (values) => values.every((value) => value === null || value > 0);
const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const EMPTY = { empty: "no data yet" };

/** One reported series as a line over steps; `empty` when the run never reported it. */
function line(state, name, title, shape) {
  const series = state.series.get(name);
  if (!series?.size) return EMPTY;
  const x = [...series.keys()].sort((a, b) => a - b);
  const y = x.map((step) => series.get(step));
  return { kind: "lines", x, xlabel: "step", series: [{ name: title, y, shape }] };
}

function tail(x, count) {
  return count ? Math.max(0, x.length - count) : 0;
}

function rollouts(state) {
  return state.tables?.rollouts ?? [];
}

/** Quick episodes finish first, so the newest version counts only once a whole batch of its groups is in. */
function whole(state) {
  const rows = rollouts(state).filter((row) => row.reward);
  const partial = rows.length > 1 && rows.at(-1).reward.groups < state.batch ? rows.pop() : null;
  return { rows, partial };
}

function reward(state) {
  const { rows, partial } = whole(state);
  if (!rows.length) return EMPTY;
  const newest = rows.at(-1).reward;
  const change = newest.mean - rows[0].reward.mean;
  return {
    kind: "lines", x: rows.map((row) => row.version), xlabel: "version that generated", ylabel: "reward", zero: true,
    series: [{ name: "mean", y: rows.map((row) => row.reward.mean), lo: rows.map((row) => row.reward.low), hi: rows.map((row) => row.reward.high) }],
    now: share(newest.mean),
    say: `${change < 0 ? "Down" : "Up"} ${share(Math.abs(change))} since v${rows[0].version}. Band: 95 % over groups; newest n = ${newest.n} episodes in ${many(newest.groups, "group")}.${partial ? ` v${partial.version} is left out: ${partial.reward.groups} of ${state.batch} groups so far.` : ""}`,
  };
}

function spread(state) {
  const table = state.tables?.reward_histogram;
  const kept = new Set(whole(state).rows.map((row) => row.version));
  const versions = table?.rows.filter((row) => kept.has(row.version)) ?? [];
  if (!versions.length) return EMPTY;
  const y = table.edges.map((edge, i) => i === table.edges.length - 1 ? `${share(edge)}–${share(edge + table.width)}` : share(edge));
  const top = (row) => row.counts.at(-1);
  const all = (row) => row.counts.reduce((a, b) => a + b, 0);
  const [first, newest] = [versions[0], versions.at(-1)];
  return {
    kind: "heat", x: versions.map((row) => row.version), y, z: table.edges.map((_, i) => versions.map((row) => row.counts[i])),
    xlabel: "version that generated", ylabel: "reward", ytype: "category", zlabel: "episodes",
    now: String(top(newest)), unit: `of ${all(newest)} in the top tenth`,
    say: `Share in the top tenth of reward: ${percent(top(first) / all(first))} at v${first.version}, ${percent(top(newest) / all(newest))} at v${newest.version}.`,
  };
}

/** Percentile lines; zeros have no place on a logarithmic axis, so those tables get a linear one. */
function percentiles(state, key, names, sayIt) {
  const rows = whole(state).rows.filter((row) => row[key] && row[key][names[0]] !== null);
  if (!rows.length) return EMPTY;
  const series = names.map((name) => ({ name, y: rows.map((row) => row[key][name]) }));
  const newest = rows.at(-1);
  return {
    kind: "lines", x: rows.map((row) => row.version), xlabel: "version that generated", ylabel: "seconds", series,
    ytype: series.every((s) => positive(s.y)) ? "log" : "linear", ...sayIt(newest, rows),
  };
}

const latency = (state) => percentiles(state, "latency", ["p50", "p90", "p95", "p99"], (newest, rows) => ({
  now: `${seconds(newest.latency.p50)} · ${seconds(newest.latency.p99)}`, unit: "s",
  say: `p50 · p99 of whole episodes at v${newest.version}, n = ${newest.episodes}; ${rows.reduce((n, row) => n + row.episodes, 0)} episodes in all.`,
}));

const toolWait = (state) => percentiles(state, "tool_wait", ["p50", "p99", "max"], (newest, rows) => ({
  now: seconds(newest.tool_wait.p50), unit: "s, p50",
  say: `Time an episode waits for its tools, n = ${newest.episodes} at v${newest.version}. Longest so far ${seconds(Math.max(...rows.map((row) => row.tool_wait.max)))} s.`,
}));

function staleness(state) {
  const table = state.tables?.staleness;
  if (!table?.n) return EMPTY;
  const ages = Object.keys(table.counts).map(Number).sort((a, b) => a - b);
  const dropped = `${table.bound + 1}+ (refused)`;
  const words = ages.map((age) => `${table.counts[age]} at ${age}`).join(", ");
  return {
    kind: "bars", x: [...ages.map(String), dropped], xtype: "category", xlabel: "versions behind the trainer", ylabel: "episodes",
    labels: [...ages.map((age) => String(table.counts[age])), many(table.dropped_groups, "group") + " dropped"],
    series: [{ name: "episodes", y: [...ages.map((age) => table.counts[age]), 0] }], now: fixed(table.mean), unit: "versions, mean",
    say: `${words}; none above the bound of ${table.bound}. n = ${table.n}.`,
  };
}

function spans(state) {
  const rows = rollouts(state);
  if (!rows.length) return EMPTY;
  const [spanning, all] = [rows.reduce((n, row) => n + row.spanning_episodes, 0), rows.reduce((n, row) => n + row.episodes, 0)];
  return {
    kind: "bars", stack: true, x: rows.map((row) => row.version), xlabel: "version that began", ylabel: "episodes",
    series: [{ name: "one version", y: rows.map((row) => row.episodes - row.spanning_episodes) }, { name: "two or more", y: rows.map((row) => row.spanning_episodes), colour: 4 }],
    now: (100 * spanning / all).toFixed(1), unit: "% span two",
    say: `${spanning} of ${all} episodes met a weight update half-way; every token keeps its version.`,
  };
}

function pause(state) {
  const chart = line(state, "fleet/pause_seconds", "pause");
  if (chart.empty) return { empty: "no install was felt yet" };
  const y = chart.series[0].y;
  return {
    ...chart, kind: "bars", xtype: "category", x: chart.x.map((version) => `v${version}`), xlabel: "version installed", ylabel: "seconds",
    series: [{ name: "pause", y, colour: 2 }], now: seconds(y.at(-1)), unit: "s",
    say: `Longest gap between tokens while a version was installed: ${seconds(Math.max(...y))} s at most, n = ${many(y.length, "install")}.`,
  };
}

function mismatch(state) {
  const chart = line(state, "train/kl_behaviour_k3", "k3");
  if (chart.empty) return EMPTY;
  const y = chart.series[0].y;
  return { ...chart, ylabel: "nats per token", ytype: positive(y) ? "log" : "linear", series: [{ ...chart.series[0], colour: 3 }], now: y.at(-1)?.toFixed(4) ?? "–", unit: "nats", say: "Trainer against behaviour log-probabilities of the sampled tokens; 0 is none. Reported by the trainer." };
}

function utilisation(state) {
  const names = ["train_seconds", "wait_seconds", "publish_seconds"].map((name) => state.series.get(`train/${name}`));
  if (!names[0]?.size) return EMPTY;
  const x = [...names[0].keys()].sort((a, b) => a - b);
  const [busy, wait, publish] = names.map((series) => x.map((step) => series?.get(step) ?? 0));
  const part = (values) => values.map((value, i) => 100 * value / ((busy[i] + wait[i] + publish[i]) || 1));
  const total = (values) => values.reduce((a, b) => a + b, 0);
  const all = total(busy) + total(wait) + total(publish) || 1;
  return {
    kind: "bars", stack: true, x, xlabel: "step", ylabel: "% of the step", yrange: [0, 100],
    series: [{ name: "trains", y: part(busy), colour: 1 }, { name: "waits", y: part(wait), colour: 6 }, { name: "publishes", y: part(publish), colour: 4 }],
    now: percent(total(busy) / all), unit: "busy", say: `Over ${many(x.length, "step")}: waits ${percent(total(wait) / all)} for batches, publishes ${percent(total(publish) / all)}.`,
  };
}

/** A plain line with its newest value. */
const plain = (name, title, ylabel, unit, write, words, options = {}) => (state) => {
  const chart = line(state, name, title);
  if (chart.empty) return EMPTY;
  const newest = chart.series[0].y.findLast((value) => value !== null);
  return { ...chart, ylabel, now: newest === undefined ? "–" : write(newest), unit, say: `${words} n = ${many(chart.x.length, "step")}.`, ...options };
};

const CHARTS = {
  reward, latency, staleness, spans, pause, mismatch, utilisation, "reward-spread": spread, "tool-wait": toolWait,
  throughput: plain("train/tokens_per_second", "tokens", "tokens a second", "tokens/s", (v) => v.toFixed(0), "Tokens of the batch over the step's computation.", { zero: true }),
  "engine-busy": plain("engine/busy_share", "busy", "cores an engine", "cores", (v) => v.toFixed(2), "Processor seconds a second, mean over the engines, newest reading of each step.", { zero: true }),
  "engine-throughput": plain("engine/tokens_per_second", "tokens", "tokens a second", "tokens/s", (v) => v.toFixed(0), "By the whole fleet, newest reading of each step.", { zero: true }),
  "engine-requests": plain("engine/running_requests", "requests", "requests", "running", (v) => v.toFixed(0), "In the decode batches of the whole fleet, newest reading of each step.", { zero: true }),
  gradient: plain("train/grad_norm", "norm", "L2 norm", "", (v) => v.toFixed(3), "Over all trained parameters.", { zero: true }),
  entropy: plain("train/entropy", "entropy", "nats per token", "nats", (v) => v.toFixed(2), "Of the policy on sampled tokens; a fall to 0 is collapse.", { zero: true }),
  loss: plain("train/loss", "loss", "nats per token", "nats", (v) => v.toFixed(3), "Cross-entropy of the references."),
  "learning-rate": plain("train/learning_rate", "rate", "learning rate", "", (v) => v.toExponential(1), "Of each step's last update.", { zero: true, yformat: ".1e" }),
};

/** The spec of chart `id`; `count` > 0: only the last so many positions. */
export function specOf(id, state, count = 0) {
  const spec = CHARTS[id](state);
  if (spec.empty || !count || spec.xtype === "category" && id !== "pause") return spec;
  const from = tail(spec.x, count);
  const cut = (values) => values?.slice(from);
  const series = spec.series?.map((s) => ({ ...s, y: cut(s.y), ...(s.hi && { lo: cut(s.lo), hi: cut(s.hi) }) }));
  return { ...spec, x: cut(spec.x), series, z: spec.z?.map(cut), range: String(count) };
}
