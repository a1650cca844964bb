// Line charts in SVG: time runs to the right, and the newest value stands in the legend.

import { h, svg } from "./dom.js";
import { time } from "./format.js";

const HEIGHT = 150, LEFT = 68, RIGHT = 8, TOP = 8, BOTTOM = 20;

/** A chart; `update([{name, points: [[at, value], …]}])` draws it. Points without a value break the line. */
export function chart({ title, format, series: names = [], least = 0, unit = 1000, height = HEIGHT, xLabel = time }) {
  const drawing = svg("svg", { class: "chart", role: "img", "aria-label": title, height });
  const legend = h("div", { class: "legend" });
  const element = h("figure", {}, h("figcaption", {}, h("span", {}, title), legend), drawing);
  let shown = [];
  let pointer = null;

  function draw() {
    const width = Math.max(drawing.clientWidth, 200);
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const all = shown.flatMap((one) => one.points).filter(([, value]) => value !== null && Number.isFinite(value));
    if (!all.length) {
      drawing.replaceChildren(svg("text", { x: width / 2, y: height / 2, class: "axis", "text-anchor": "middle" }, "nothing yet"));
      legend.replaceChildren();
      return;
    }
    let [from, to] = [Infinity, -Infinity], [low, high] = [least ?? Infinity, -Infinity];
    for (const [at, value] of all) {
      from = Math.min(from, at); to = Math.max(to, at);
      low = Math.min(low, value); high = Math.max(high, value);
    }
    const ticks = steps(low, high, unit);
    [low, high] = [Math.min(low, ticks[0]), Math.max(high, ticks.at(-1))];
    const x = (at) => LEFT + (to === from ? 1 : (at - from) / (to - from)) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - (value - low) / (high - low || 1)) * (height - TOP - BOTTOM);
    const grid = ticks.flatMap((tick) => [
      svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick), class: "grid" }),
      svg("text", { x: LEFT - 6, y: y(tick) + 4, class: "axis", "text-anchor": "end" }, format(tick)),
    ]);
    const ends = [[from, "start", LEFT], [to, "end", width - RIGHT]].map(([at, anchor, where]) =>
      svg("text", { x: where, y: height - 5, class: "axis", "text-anchor": anchor }, xLabel(at)));
    const lines = shown.map((one, number) => svg("path", { d: line(one.points, x, y), class: `line s${number}` }));
    const at = pointer === null ? null : nearest(all, x, pointer);
    const cross = at === null ? [] : [svg("line", { x1: x(at), x2: x(at), y1: TOP, y2: height - BOTTOM, class: "cross" })];
    drawing.replaceChildren(...grid, ...ends, ...lines, ...cross);
    legend.replaceChildren(...shown.map((one, number) => {
      const point = at === null ? one.points.findLast(([, value]) => value !== null) : one.points.findLast(([when]) => when <= at);
      return h("span", { class: `key s${number}` }, `${one.name} `, h("b", {}, point ? format(point[1]) : "–"));
    }), at === null ? "" : h("span", { class: "at" }, xLabel(at)));
  }

  drawing.addEventListener("pointermove", (event) => { pointer = event.offsetX; draw(); });
  drawing.addEventListener("pointerleave", () => { pointer = null; draw(); });
  new ResizeObserver(draw).observe(drawing);
  return {
    element, title,
    update: (series) => { shown = series.map((one, at) => ({ name: names[at], ...one })); draw(); },
  };
}

function line(points, x, y) {
  let text = "", isBroken = true;
  for (const [at, value] of points) {
    if (value === null || !Number.isFinite(value)) { isBroken = true; continue; }
    text += `${isBroken ? "M" : "L"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    isBroken = false;
  }
  return text;
}

function nearest(points, x, where) {
  let best = points[0][0];
  for (const [at] of points) if (Math.abs(x(at) - where) < Math.abs(x(best) - where)) best = at;
  return best;
}

/** Three to five numbers that cover the values and are round in their unit: bytes are counted in powers of 1024. */
function steps(low, high, unit) {
  if (high <= low) high = low + (Math.abs(low) || 1);
  const raw = (high - low) / 3;
  const thousand = raw > 1 ? unit ** Math.floor(Math.log(raw) / Math.log(unit)) : 1;
  const size = thousand * 10 ** Math.floor(Math.log10(raw / thousand));
  const step = [1, 2, 5, 10].map((one) => one * size).find((one) => one >= raw);
  const found = [];
  for (let tick = Math.floor(low / step) * step; tick < high + step * 0.999; tick += step) found.push(Number(tick.toPrecision(12)));
  return found;
}

/** How full something is, from 0 to 1, with its text. */
export function meter(part, text, tone) {
  const inner = h("span", { class: `fill ${tone ?? (part > 0.9 ? "bad" : part > 0.75 ? "warn" : "")}` });
  inner.style.width = `${Math.min(Math.max(part, 0), 1) * 100}%`;
  return h("span", { class: "meter" }, h("span", { class: "track" }, inner), h("span", { class: "meter-text" }, text));
}
