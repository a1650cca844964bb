// Producers, channels and consumers as a graph that lives: rates on the edges, what is stalled or behind in colour.

import { everything, get, own, poll } from "../api.js";
import { field, h, heading, href, svg } from "../dom.js";
import { count, rate, seconds } from "../format.js";
import { isLate, lagTone, onChange } from "../live.js";

const SHOWN = 40, MEMBERS = 6;
const BOX = { height: 40, gap: 10, width: 230 };
const LEAST_BETWEEN = 90;

export async function show(main, { query, signal }) {
  const search = field("Channels that begin with", "search", { value: query.prefix ?? "" });
  const note = h("span", { class: "quiet", role: "status" });
  const holder = h("div", { class: "map panel", tabindex: "0", role: "region", "aria-label": "Map" });
  main.append(heading("Map", note), h("div", { class: "filters" }, search.element), holder);
  const known = new Map(); // channel -> its description and the revision that it is of
  let channels = [], flows = new Map();

  const prefix = () => search.input.value.trim();
  async function load() {
    const listed = await everything(own("channels"), { prefix: prefix() }, { signal });
    const wanted = listed.sort(mostAlive).slice(0, SHOWN);
    await Promise.all(wanted.filter((one) => known.get(one.channel)?.revision !== one.revision).map(async (one) => {
      const found = await get(own("channels", one.channel), undefined, { signal }).catch(() => null);
      if (found) known.set(one.channel, { revision: one.revision, ...found.channel, status: found.status });
    }));
    channels = wanted.map((one) => known.get(one.channel)).filter(Boolean).sort((a, b) => a.name.localeCompare(b.name));
    note.textContent = listed.length > wanted.length ? `${wanted.length} of ${listed.length} channels; narrow the search to see others` : `${listed.length} channels`;
    draw();
    return listed.length;
  }
  let drawn = "";
  function draw() {
    const graph = layout(channels, flows);
    const text = JSON.stringify(graph);
    if (text === drawn) return;
    drawn = text;
    const focused = document.activeElement?.closest?.(".map a")?.getAttribute("data-id");
    holder.replaceChildren(channels.length ? picture(graph, holder.clientWidth - 2) : h("p", { class: "empty" }, "No channels to draw."));
    if (focused) [...holder.querySelectorAll("a")].find((one) => one.getAttribute("data-id") === focused)?.focus();
  }
  search.input.addEventListener("input", () => {
    history.replaceState(null, "", href("map", prefix() ? { prefix: prefix() } : {}));
    load().catch(() => {});
  });
  onChange(signal, load);
  await poll(1, signal, async () => {
    const said = await get(own("flow"), { detail: "true", limit: 200, prefix: prefix() }, { signal });
    flows = new Map(said.channels.map((one) => [one.channel, one]));
    draw();
  });
}

const mostAlive = (a, b) => b.producer_count + b.consumer_count - (a.producer_count + a.consumer_count) || a.channel.localeCompare(b.channel);

/** Where everything stands: one band for each channel, its producers to the left and its consumers to the right. */
function layout(channels, flows) {
  const nodes = [], edges = [];
  let top = 30;
  for (const channel of channels) {
    const flow = flows.get(channel.name);
    const left = members(Object.values(channel.producers), (one) => producer(one, flow));
    const right = members([...Object.values(channel.consumers), ...strangers(channel, flow)], (one) => consumer(one, flow));
    const rows = Math.max(left.length, right.length, 1);
    const height = rows * BOX.height + (rows - 1) * BOX.gap;
    const middle = top + height / 2;
    const where = href("channels", channel.name);
    const bad = channel.status === "conflict" || channel.status === "stalled";
    nodes.push({ id: channel.name, kind: "channel", column: 1, y: middle, href: where, title: channel.name, sub: `${channel.status}, ${rate(flow?.items_per_second ?? 0)}`, tone: bad ? "bad" : flow?.is_held_back ? "warn" : "" });
    for (const [column, side] of [[0, left], [2, right]]) {
      side.forEach((one, at) => {
        const y = middle + (at - (side.length - 1) / 2) * (BOX.height + BOX.gap);
        nodes.push({ ...one, column, y, href: where, id: `${channel.name} ${column} ${one.title}` });
        edges.push({ from: column ? [1, middle] : [0, y], to: column ? [2, y] : [1, middle], tone: one.tone, flow: Boolean(one.items), text: one.text, width: Math.min(1.5 + Math.log10(1 + (one.items ?? 0)), 5) });
      });
    }
    top += height + 26;
  }
  return { nodes, edges, height: top };
}

function members(all, make) {
  const made = all.map(make).sort((a, b) => (b.tone ? 1 : 0) - (a.tone ? 1 : 0));
  if (made.length <= MEMBERS) return made;
  return [...made.slice(0, MEMBERS - 1), { title: `${made.length - MEMBERS + 1} more`, sub: "", tone: "", text: "", items: 0 }];
}

function producer(one, flow) {
  const ring = flow?.ring_list.find((each) => each.producer_id === one.producer_id);
  const tone = one.status === "stalled" ? "bad" : ring?.is_waiting ? "warn" : "";
  const sub = one.status !== "active" ? one.status : ring?.is_waiting ? "waits for a reader" : `pid ${one.pid ?? "–"}`;
  return { title: one.producer_id, sub, tone, items: ring?.items_per_second ?? 0, text: rate(ring?.items_per_second ?? 0) };
}

function consumer(one, flow) {
  const found = (flow?.ring_list ?? []).flatMap((ring) => ring.readers).filter((each) => each.consumer_id === one.consumer_id && (one.consumer_id || each.pid === one.pid));
  const items = found.reduce((sum, each) => sum + each.items_per_second, 0);
  const worst = found.reduce((most, each) => (!most || each.lag_seconds > most.lag_seconds ? each : most), null);
  const late = isLate(worst);
  const tone = one.status === "stalled" ? "bad" : late ? lagTone(worst) : "";
  const sub = one.status !== "active" ? one.status : late ? `${count(worst.lag_items)} items, ${seconds(Math.round(worst.lag_seconds))} behind` : one.group ? `group ${one.group}` : `pid ${one.pid ?? "–"}`;
  return { title: one.consumer_id ?? `reader ${one.pid ?? ""}`, sub, tone, items, text: rate(items) };
}

/** Readers that are not registered, such as a tail or a Spark task. */
function strangers(channel, flow) {
  return (flow?.ring_list ?? []).flatMap((ring) => ring.readers).filter((one) => one.consumer_id === null).map((one) => ({ consumer_id: null, pid: one.pid, status: "active" }));
}

function picture({ nodes, edges, height }, room) {
  const between = Math.max((room - 20 - 3 * BOX.width) / 2, LEAST_BETWEEN);
  const x = (column) => 10 + column * (BOX.width + between);
  const width = x(2) + BOX.width + 10;
  const heads = ["Producers", "Channels", "Consumers"].map((text, at) => svg("text", { x: x(at), y: 18, class: "column" }, text));
  const lines = edges.flatMap(({ from, to, tone, flow, text, width: thick }) => {
    const [x1, y1, x2, y2] = [x(from[0]) + BOX.width, from[1], x(to[0]), to[1]];
    const middle = (x1 + x2) / 2;
    const curve = svg("path", { d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`, class: `edge ${tone} ${flow ? "flows" : "still"}`, "stroke-width": thick });
    const label = svg("text", { x: from[0] ? x2 - 8 : x1 + 8, y: (from[0] ? y2 : y1) - 5, "text-anchor": from[0] ? "end" : "start", class: `edge-text ${tone}` }, text);
    return [curve, label];
  });
  const boxes = nodes.map((node) => svg("a", { href: node.href, "data-id": node.id, class: `node ${node.kind ?? ""} ${node.tone}`, "aria-label": `${node.title}, ${node.sub}` },
    svg("rect", { x: x(node.column), y: node.y - BOX.height / 2, width: BOX.width, height: BOX.height, rx: 6 }),
    svg("text", { x: x(node.column) + 10, y: node.y - 3 }, cut(node.title)),
    svg("text", { x: x(node.column) + 10, y: node.y + 13, class: "sub" }, node.sub), svg("title", {}, `${node.title}, ${node.sub}`)));
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Producers, channels and consumers" }, ...heads, ...lines, ...boxes);
}

const cut = (text) => (text.length > 31 ? `${text.slice(0, 15)}…${text.slice(-14)}` : text);
