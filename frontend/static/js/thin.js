// Min–max per bucket: at most a thousand points a trace, and a single spike is never lost.
const MOST = 1000;

/** `x` and parallel rows (some undefined) cut to `range` and thinned by the first row. */
export function thin(x, rows, range = null) {
  let keep = x.map((_, i) => i);
  if (range) keep = keep.filter((i) => x[i] >= range[0] && x[i] <= range[1]);
  if (keep.length > MOST) keep = extremes(keep, rows[0]);
  return { x: keep.map((i) => x[i]), rows: rows.map((row) => row && keep.map((i) => row[i])) };
}

function extremes(keep, y) {
  const size = keep.length / (MOST / 2);
  const chosen = [];
  for (let start = 0; start < keep.length; start += size) {
    const bucket = keep.slice(Math.floor(start), Math.floor(start + size));
    let low = bucket[0];
    let high = bucket[0];
    for (const i of bucket) {
      if (y[i] < y[low]) low = i;
      if (y[i] > y[high]) high = i;
    }
    chosen.push(...(low === high ? [low] : [Math.min(low, high), Math.max(low, high)]));
  }
  return chosen;
}
