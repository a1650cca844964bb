// What several views watch: changes of the registry, and how far readers are behind.

import { get, poll } from "./api.js";

const LATE_SECONDS = 2;

/** Run `act` now and whenever the registry has changed. `act` returns how many it has loaded: many are loaded less often. */
export async function onChange(signal, act, onerror) {
  let seen = null, due = 0;
  await poll(2, signal, async () => {
    const { revision } = await get("readyz", undefined, { signal });
    if (revision === seen || performance.now() < due) return;
    const size = (await act()) ?? 0;
    seen = revision;
    due = performance.now() + size * 2;
  }, onerror);
}

/** Whether a reader, or the slowest one of a channel, is behind for longer than a moment. */
export const isLate = (one) => Boolean(one && one.lag_items > 0 && one.lag_seconds >= LATE_SECONDS);
export const lagTone = (one) => (isLate(one) ? (one.lag_seconds >= 10 * LATE_SECONDS ? "bad" : "warn") : undefined);

/** A window of points that moves on, for charts of what is measured here. */
export function series(most = 180) {
  const points = [];
  return { points, add: (at, value) => { points.push([at, value]); if (points.length > most) points.shift(); } };
}
