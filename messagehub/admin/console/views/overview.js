// How the hub is: what needs attention, its figures over the last minutes, and what has just happened.

import { everything, get, own, poll } from "../api.js";
import { chart, meter } from "../charts.js";
import { badge, facts, h, heading, href, link, panel } from "../dom.js";
import { eventLog } from "../events.js";
import { byteRate, bytes, count, date, plural, programName, rate, seconds, time } from "../format.js";
import { isLate, onChange } from "../live.js";
import { hostsNotWell, hostsOfSite } from "../site.js";

const MOST_LOSING = 10;

export async function show(main, { signal }) {
  const state = h("span", {});
  const attention = h("ul", { class: "log", "aria-live": "polite", tabindex: "0", "aria-label": "What needs attention" });
  const about = h("div", {}), storage = h("div", {});
  const height = 120;
  const charts = [
    [chart({ height, title: "Requests", format: (value) => rate(value), series: ["broker", "HTTP"] }), ["requests_per_second", "http_requests_per_second"]],
    [chart({ height, title: "Errors", format: (value) => rate(value), series: ["broker", "HTTP"] }), ["errors_per_second", "http_errors_per_second"]],
    [chart({ height, title: "Time to answer", format: seconds, series: ["p50", "p99"] }), ["p50_seconds", "p99_seconds"]],
    [chart({ height, title: "Items written", format: (value) => rate(value), series: ["items"] }), ["items_per_second"]],
    [chart({ height, unit: 1024, title: "Bytes written", format: byteRate, series: ["bytes"] }), ["bytes_per_second"]],
  ];
  let hub = null, site = null, flow = null, channels = [], subscriptions = [];
  const events = panel("Latest events", eventLog({ kinds: "channel,schema,topic,service" }, signal));
  const hosts = hostsOfSite(signal, (seen) => { site = seen; draw(); });
  main.append(heading("Overview", state),
    panel("Attention", attention), hosts,
    h("div", { class: "panels three" }, ...charts.map(([one]) => h("section", { class: "panel", "aria-label": one.title }, one.element)), panel("Memory and disk", storage)),
    h("div", { class: "panels" }, events, panel("Hub", about)));

  function draw() {
    if (!hub) return;
    const word = hub.problems.length ? "degraded" : hub.read_only ? "read only" : hub.draining ? "draining" : "healthy";
    state.replaceChildren(h("span", { class: "quiet" }, "broker "), badge(word));
    about.replaceChildren(facts(aboutHub(hub)));
    storage.replaceChildren(...[["Shared memory", hub.shared_memory], ["Disk", hub.disk]].map(([title, place]) => space(title, place)));
    const found = problems(hub, site, flow, channels, subscriptions);
    attention.replaceChildren(...(found.length ? found : [h("li", {}, h("span", {}, badge("good", "good")), h("span", {}, "Nothing: no conflict, nobody stalled, nobody far behind."))]));
  }
  onChange(signal, async () => {
    channels = await everything(own("channels"), {}, { signal });
    draw();
    return channels.length;
  });
  poll(2, signal, async () => {
    [hub, flow] = await Promise.all([get(own("hub"), undefined, { signal }), get(own("flow"), undefined, { signal })]);
    draw();
  });
  poll(5, signal, async () => {
    subscriptions = (await get(own("subscriptions"), undefined, { signal })).subscriptions;
    draw();
  });
  let points = [];
  await poll(2, signal, async () => {
    const said = await get(own("history"), { after: points.at(-1)?.at }, { signal });
    points = points.concat(said.points).slice(-150);
    for (const [one, names] of charts) one.update(names.map((name) => ({ points: points.map((point) => [point.at, point[name]]) })));
  });
}

function aboutHub(hub) {
  const { counts } = hub;
  const number = (view, name) => link(href(view), count(counts[name]));
  return [
    ["Host", hub.host], ["Version", hub.version], ["Up for", seconds(hub.uptime_seconds)], ["Started", date(hub.started_at)],
    ["Channels", number("channels", "channels")], ["Producers", count(counts.producers)], ["Consumers", count(counts.consumers)], ["Tables", count(counts.tables)],
    ["Subjects", number("schemas", "subjects")], ["Schemas in them", count(counts.schemas)], ["Retained topics", number("topics", "topics")], ["Services", number("services", "services")], ["Workers", count(counts.workers)],
    ["Clients registered", count(counts.leases)], ["Broker", `pid ${hub.pid}, ${bytes(hub.processes?.broker?.memory_bytes)}`], ["HTTP", `pid ${hub.http_pid}, ${bytes(hub.processes?.http?.memory_bytes)}`],
    ["Rings in", hub.ring_core === "c" ? "C" : hub.ring_core], ["Domain", hub.domain], ["Directory", hub.directory], ["Endpoint", hub.endpoints?.control],
  ];
}

function space(title, place) {
  const part = 1 - place.free_bytes / place.total_bytes;
  return h("div", {}, h("h3", {}, `${title}, ${place.path}`),
    meter(part, `${bytes(place.total_bytes - place.free_bytes)} of ${bytes(place.total_bytes)}`),
    h("p", { class: "quiet" }, `of which this hub uses ${bytes(place.used_bytes)}`));
}

function problems(hub, site, flow, channels, subscriptions) {
  const line = (tone, word, ...what) => h("li", {}, h("span", {}, badge(word, tone)), h("span", { class: "what" }, ...what));
  const found = hub.problems.map((text) => line("bad", "fails", text));
  if (hub.read_only) found.push(line("bad", "store", "the hub takes no writes: its store is read only"));
  for (const one of hostsNotWell(site)) found.push(line(one.health === "left" ? "quiet" : "bad", one.health, `host ${one.host}${one.reason ? `: ${one.reason}` : ""}`));
  for (const place of [hub.shared_memory, hub.disk]) {
    if (place.free_bytes < 0.1 * place.total_bytes) found.push(line("warn", "space", `${place.path} is nearly full: ${bytes(place.free_bytes)} are free`));
  }
  for (const one of channels) {
    if (one.status === "conflict" || one.status === "stalled") found.push(line("bad", one.status, link(href("channels", one.channel), one.channel)));
  }
  for (const one of flow?.channels ?? []) {
    const who = one.slowest ? `: ${one.slowest}` : "", since = one.late_since ? `, at least since ${time(one.late_since)}` : "";
    if (one.is_held_back) found.push(line("bad", "waits", "the writer of ", link(href("channels", one.channel), one.channel), ` waits for a reader${who}, ${count(one.lag_items)} items behind${since}`));
    else if (one.missed_per_second > 0) found.push(line("bad", "loses", "a consumer of ", link(href("channels", one.channel), one.channel), ` loses ${rate(one.missed_per_second, " items/s")}, ${count(one.missed_items)} so far${since}${one.most_missed_by ? `: ${one.most_missed_by}` : ""}`));
    else if (isLate(one)) found.push(line("warn", "lags", "a consumer of ", link(href("channels", one.channel), one.channel), ` is ${seconds(one.lag_seconds)} and ${count(one.lag_items)} items behind${since}${who}`));
  }
  for (const one of subscriptions.filter((each) => each.lost).sort((a, b) => b.lost - a.lost).slice(0, MOST_LOSING)) {
    found.push(line("warn", "lost", `a subscription to ${one.patterns.join(", ")} has lost `, link(href("topics"), plural(one.lost, "message")), ` since ${time(one.began_at)}: ${programName(one.program, "a program")}, pid ${one.pid ?? "–"} on ${one.host ?? "–"}`));
  }
  if (hub.counts.dead_letters) found.push(line("warn", "letters", link(href("services"), plural(hub.counts.dead_letters, "dead letter")), " could not be delivered"));
  return found.slice(0, 50);
}
