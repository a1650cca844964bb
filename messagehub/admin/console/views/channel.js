// One channel: who writes and reads it, how far each reader is behind, its schema, its data and its events.

import { ask, get, own, poll } from "../api.js";
import { chart, meter } from "../charts.js";
import { badge, button, dialog, facts, field, h, heading, href, link, notice, panel } from "../dom.js";
import { eventLog } from "../events.js";
import { ago, byteRate, bytes, count, date, percent, rate, seconds, short, time } from "../format.js";
import { isLate, lagTone, onChange, series } from "../live.js";
import { may } from "../rights.js";
import { table } from "../table.js";
import { showTail } from "./tail.js";

export async function show(main, { parts: [channel, tab = "members"], signal }) {
  const tabs = [["members", "Members and flow"], ...(may("consume", channel) ? [["tail", "Tail"]] : []), ["events", "Events"]];
  const state = h("span", {});
  const end = may("admin") && button("Destroy", () => destroy(channel), { class: "danger" });
  const nav = h("nav", { class: "tabs", "aria-label": "Parts of the channel" }, tabs.map(([name, title]) =>
    h("a", { href: href("channels", channel, name), "aria-current": name === tab ? "page" : undefined }, title)));
  const offer = (isThere) => {
    if (end) end.hidden = !isThere;
    for (const one of nav.children) if (one.textContent === "Tail") one.hidden = !isThere;
  };
  main.append(h("div", { class: "crumb" }, link(href("channels"), "Channels")),
    heading(channel, state, end), nav);
  const body = h("div", {});
  main.append(body);
  onChange(signal, async () => {
    const found = await get(own("channels", channel), undefined, { signal });
    state.replaceChildren(badge(found.status));
    offer(true);
  }, (error) => { if (error.status === 404) { state.replaceChildren(badge("ended")); offer(false); } });
  if (tab === "tail") await showTail(body, channel, signal);
  else if (tab === "events") body.append(panel("Events of this channel", eventLog({ prefix: `channel/${channel}/` }, signal)));
  else await showMembers(body, channel, signal);
}

async function showMembers(body, channel, signal) {
  const about = h("div", {});
  const conflict = h("p", { class: "failure", role: "alert" });
  const written = series(), lag = series();
  const speed = chart({ title: "Items written", format: (value) => rate(value), series: ["items/s"] });
  const behind = chart({ title: "Slowest reader", format: seconds, series: ["behind"] });
  let described = null, flow = null;
  const ringOf = (row) => flow?.ring_list.find((ring) => ring.producer_id === row.producer_id || ring.shm_name === row.shm_name);
  const readerOf = (row) => worst((flow?.ring_list ?? []).flatMap((ring) => ring.readers).filter((one) => one.consumer_id === row.consumer_id));

  const producers = table({
    label: "Producers", key: (row) => row.producer_id, most: 300, empty: "Nobody writes this channel.",
    columns: [
      { label: "Producer", value: (row) => row.producer_id, width: "26%" },
      { label: "Status", value: (row) => row.status, show: (row) => badge(row.status), width: "84px" },
      { label: "Process", value: (row) => `${row.pid ?? "–"} on ${row.host ?? "–"}`, isMinor: true },
      { label: "Items/s", value: (row) => ringOf(row)?.items_per_second ?? null, show: (row) => rate(ringOf(row)?.items_per_second, ""), align: "right", width: "80px" },
      { label: "Bytes/s", value: (row) => ringOf(row)?.bytes_per_second ?? null, show: (row) => byteRate(ringOf(row)?.bytes_per_second), align: "right", isMinor: true, width: "100px" },
      { label: "Written", value: (row) => ringOf(row)?.head ?? null, show: (row) => count(ringOf(row)?.head), align: "right", isMinor: true, width: "90px" },
      { label: "Since", value: (row) => row.registered_at, show: (row) => date(row.registered_at), isMinor: true, width: "178px" },
      ...evictColumn(channel, "producers", "producer_id"),
    ],
  });
  const consumers = table({
    label: "Consumers", key: (row) => row.consumer_id, most: 400, empty: "Nobody reads this channel.",
    columns: [
      { label: "Consumer", value: (row) => row.consumer_id, width: "18%" },
      { label: "Status", value: (row) => row.status, depends: (row) => [isLate(readerOf(row)), readerOf(row)?.missed_per_second > 0], width: "84px",
        show: (row) => (row.status !== "active" ? badge(row.status) : readerOf(row)?.missed_per_second > 0 ? badge("losing", "bad") : isLate(readerOf(row)) ? badge("lagging") : badge(row.status)) },
      { label: "Group", value: (row) => row.group ?? "", isMinor: true, width: "78px" },
      { label: "Process", value: (row) => `${row.pid ?? "–"} on ${row.host ?? "–"}`, isMinor: true },
      { label: "Items/s", value: (row) => readerOf(row)?.items_per_second ?? null, show: (row) => rate(readerOf(row)?.items_per_second, ""), align: "right", isMinor: true, width: "66px" },
      { label: "Lag, items", value: (row) => readerOf(row)?.lag_items ?? null, show: (row) => toned(readerOf(row), count(readerOf(row)?.lag_items)), align: "right", isMinor: true, width: "86px" },
      { label: "Lag, bytes", value: (row) => readerOf(row)?.lag_bytes ?? null, show: (row) => bytes(readerOf(row)?.lag_bytes), align: "right", isMinor: true, width: "84px" },
      { label: "Lag, time", value: (row) => readerOf(row)?.lag_seconds ?? null, show: (row) => toned(readerOf(row), seconds(readerOf(row)?.lag_seconds)), align: "right", width: "78px" },
      { label: "Lost", value: (row) => readerOf(row)?.missed_items ?? null, depends: (row) => readerOf(row)?.missed_per_second, width: "62px", align: "right", isMinor: true,
        show: (row) => { const one = readerOf(row); return one?.missed_items ? h("span", { class: one.missed_per_second ? "bad-text" : "warn-text" }, count(one.missed_items)) : count(one?.missed_items); } },
      { label: "Late since", value: (row) => readerOf(row)?.late_since ?? null, show: (row) => (readerOf(row)?.late_since ? time(readerOf(row).late_since) : "–"), align: "right", isMinor: true, width: "86px" },
      { label: "Holds", value: (row) => readerOf(row)?.held_slots ?? null, show: (row) => count(readerOf(row)?.held_slots), align: "right", isMinor: true, width: "56px" },
      ...evictColumn(channel, "consumers", "consumer_id"),
    ],
  });
  const groups = table({
    label: "Consumer groups", key: (row) => `${row.group} ${row.shm_name}`, most: 240, empty: "No consumer group shares this channel.",
    columns: [
      { label: "Group", value: (row) => row.group },
      { label: "Ring", value: (row) => row.shm_name, isMinor: true },
      { label: "Members", value: (row) => row.members, align: "right" },
      { label: "Lag, items", value: (row) => row.lag_items, show: (row) => toned(row, count(row.lag_items)), align: "right" },
      { label: "Lag, time", value: (row) => row.lag_seconds, show: (row) => toned(row, seconds(row.lag_seconds)), align: "right" },
    ],
  });
  const rings = table({
    label: "Blocks", key: (row) => row.shm_name, most: 300, empty: "No block of this channel is in the memory of this host.",
    columns: [
      { label: "Block", value: (row) => row.shm_name, width: "26%" },
      { label: "Format", value: (row) => row.format, isMinor: true, width: "76px" },
      { label: "When full", value: (row) => row.when_full, isMinor: true, width: "90px" },
      { label: "Slots", value: (row) => row.slots, align: "right", isMinor: true, width: "70px" },
      { label: "Fill", value: (row) => row.fill, depends: (row) => row.is_waiting, show: (row) => meter(row.fill, row.is_waiting ? "writer waits" : percent(row.fill)), width: "170px" },
      { label: "Items/s", value: (row) => row.items_per_second, show: (row) => rate(row.items_per_second, ""), align: "right", width: "80px" },
      { label: "Item", value: (row) => row.mean_item_bytes, show: (row) => bytes(row.mean_item_bytes), align: "right", isMinor: true, width: "80px" },
      { label: "Memory", value: (row) => row.memory_bytes, show: (row) => bytes(row.memory_bytes), align: "right", isMinor: true, width: "86px" },
      { label: "Written", value: (row) => row.written_at, show: (row) => (row.written_at ? ago(row.written_at) : "never"), align: "right", width: "104px" },
    ],
  });
  const groupPanel = panel("Consumer groups", groups.element);
  groupPanel.hidden = true;
  body.append(conflict, panel("About", about), panel("Producers", producers.element), panel("Consumers", consumers.element), groupPanel,
    h("div", { class: "panels" }, h("section", { class: "panel", "aria-label": "Items written" }, speed.element), h("section", { class: "panel", "aria-label": "Slowest reader" }, behind.element)),
    panel("Blocks in shared memory", rings.element));

  function draw() {
    if (!described) return;
    producers.update(Object.values(described.channel.producers));
    consumers.update(Object.values(described.channel.consumers));
    rings.update(flow?.ring_list ?? []);
    const shared = (flow?.ring_list ?? []).flatMap((ring) => ring.groups.map((one) => ({ ...one, shm_name: ring.shm_name })));
    groupPanel.hidden = !shared.length;
    groups.update(shared);
  }

  onChange(signal, async () => {
    described = await get(own("channels", channel), undefined, { signal });
    conflict.textContent = described.channel.conflict ? `Conflict: ${described.channel.conflict}` : "";
    about.replaceChildren(facts(aboutChannel(described.channel)));
    draw();
  }, (error) => { if (error.status === 404) conflict.textContent = "This channel is not there: it ended with its last member, or never was."; });
  await poll(1, signal, async () => {
    flow = await get(own("channels", channel, "flow"), undefined, { signal });
    written.add(flow.at, flow.interval_seconds ? flow.items_per_second : null);
    lag.add(flow.at, flow.readers ? flow.lag_seconds : null);
    speed.update([{ points: written.points }]);
    behind.update([{ points: lag.points }]);
    draw();
  });
}

function aboutChannel(channel) {
  const schema = channel.schema_hash
    ? h("span", {}, channel.schema_id ? link(href("schemas", channel.name), `${channel.schema_version || short(channel.schema_hash)}`) : short(channel.schema_version || channel.schema_hash, 24), " ", badge(channel.schema))
    : "none yet";
  const table = channel.table;
  return [
    ["Schema", schema], ["Schema type", channel.schema_type], ["Schema id", channel.schema_id],
    ["Access", channel.access && `${channel.access}${channel.binds_access ? ", declared" : ""}`],
    ["Priority", channel.priority], ["Policy", channel.config?.policy],
    ["Declared", channel.declared ? `yes${channel.binds_schema ? ", with its schema" : ""}` : "no: ends with its last member"],
    ["Created", date(channel.created_at)],
    ["Table", table && `generation ${table.generation}, ${count(table.rows)} rows, ${bytes(table.size_bytes)} on ${table.host ?? "–"}, ${ago(table.committed_at)}`],
    ["Metadata", Object.keys(channel.metadata ?? {}).length ? JSON.stringify(channel.metadata) : null],
  ];
}

const worst = (readers) => readers.reduce((most, one) => (!most || one.lag_items > most.lag_items ? one : most), undefined);
const toned = (one, text) => (lagTone(one) ? h("span", { class: `${lagTone(one)}-text` }, text) : text);

function evictColumn(channel, kind, id) {
  if (!may("admin")) return [];
  return [{ label: "Evict", align: "right", width: "72px", depends: (row) => row[id], show: (row) =>
    button("Evict", () => evict(channel, kind, row[id]), { class: "small danger", "aria-label": `Evict ${row[id]}` }) }];
}

function evict(channel, kind, id) {
  dialog(`Evict ${id}?`, {
    submit: "Evict", danger: true,
    text: "It is removed from the channel at once. Its next read or write fails with EVICTED, and it cannot come back as the same member before its lease would have ended.",
    act: async () => {
      await ask("DELETE", own("channels", channel, kind, id));
      notice(`Evicted ${id}.`);
    },
  });
}

function destroy(channel) {
  const data = field("Also remove its table", "checkbox");
  dialog(`Destroy ${channel}?`, {
    submit: "Destroy", danger: true, fields: [data],
    text: "Its members are told that the channel has ended. A channel that has a table is destroyed only together with it.",
    act: async () => {
      await ask("DELETE", own("channels", channel), { query: data.input.checked ? { data: "true" } : undefined });
      notice(`Destroyed ${channel}.`);
      location.hash = href("channels");
    },
  });
}
