// Retained topics, plain ones in use, and what is published to any topic as it comes; `#/topics/NAME` shows one topic.

import { ask, everything, follow, get, own, poll } from "../api.js";
import { badge, button, dialog, field, h, heading, href, link, notice, panel } from "../dom.js";
import { ago, bytes, count, date, plural, programName, seconds, time, value } from "../format.js";
import { onChange } from "../live.js";
import { may } from "../rights.js";
import { table } from "../table.js";
import { isTraceable, whereabouts } from "./message.js";
import { show as showOne } from "./topic.js";

const LISTED = 500;

export async function show(main, place) {
  if (place.parts.length) return showOne(main, place);
  const { query, signal } = place;
  main.append(heading("Topics",
    may("produce") && button("Publish", () => publish(""), { class: "primary" }), may("admin") && button("Retain a topic", retain)));
  const list = table({
    label: "Retained topics", key: (row) => row.name, most: 300, empty: "No topic is retained. Plain topics have no history: follow them below.",
    columns: [
      { label: "Topic", value: (row) => row.name, show: (row) => link(href("topics", row.name), row.name), width: "40%" },
      { label: "Next offset", value: (row) => row.next_offset || "not known", align: "right" },
      { label: "Ever stored", value: (row) => row.total_bytes, show: (row) => bytes(row.total_bytes), align: "right", isMinor: true },
      { label: "Bounds", value: (row) => bounds(row.keep), isMinor: true },
      { label: "Home host", value: (row) => row.home ?? "", isMinor: true },
      { label: "Created", value: (row) => row.created_at, show: (row) => date(row.created_at), isMinor: true, width: "178px" },
    ],
  });
  const plain = table({
    label: "Plain topics", key: (row) => row.name, most: 200, empty: "Nobody published to a plain topic in the last ten minutes, and nobody subscribes to one.",
    columns: [
      { label: "Topic", value: (row) => row.name, show: (row) => link(href("topics", row.name), row.name), width: "40%" },
      { label: "Publishers now", value: (row) => row.publishers, align: "right" },
      { label: "Published about", value: (row) => row.asked_at, show: (row) => (row.asked_at ? ago(row.asked_at) : "not lately"), align: "right" },
    ],
  });
  const every = subscriberTable("Subscriptions", "Nobody subscribes to any topic.");
  main.append(panel("Retained topics", list.element), panel("Plain topics in use", h("p", { class: "quiet" }, "They have no history. Choose one to see who gets it."), plain.element));
  if (may("consume")) liveTail(main, query.pattern ?? ">", signal);
  main.append(panel("Who subscribes", every.element));
  let retained = [];
  onChange(signal, async () => {
    retained = await everything(own("topics"), {}, { signal });
    list.update(retained);
    return retained.length;
  });
  await poll(2, signal, async () => {
    const [used, found] = await Promise.all([get(own("plain-topics"), undefined, { signal }), get(own("subscriptions"), undefined, { signal })]);
    const known = new Set([...retained, ...used].map((one) => one.name));
    const named = found.subscriptions.flatMap((one) => one.patterns).filter((one) => !/[*>]/.test(one) && !known.has(one));
    plain.update([...used, ...[...new Set(named)].map((name) => ({ name, publishers: 0, asked_at: null }))]);
    every.update(keyedSubscribers(found.subscriptions));
  });
}

const KINDS = { all: "everything", retained: "what is stored", group: "share of ", durable: "durable " };
export const keyedSubscribers = (found) => found.map((one, at) => ({ ...one, key: `${one.host} ${one.pid} ${one.began_at} ${one.patterns} ${at}` }));

/** Who subscribes, and how much each got; rows are those of /api/v1/subscriptions, with a key. */
export function subscriberTable(label, empty) {
  return table({
    label, empty, key: (row) => row.key, most: 300, sort: 3, isDescending: true,
    columns: [
      { label: "Program", value: (row) => programName(row.program, "unknown"), width: "16%" },
      { label: "Process", value: (row) => `${row.pid ?? "–"} on ${row.host ?? "–"}`, isMinor: true },
      { label: "Subscribes to", value: (row) => row.patterns.join(", "), width: "16%" },
      { label: "Received", value: (row) => row.received, show: (row) => count(row.received), align: "right", width: "104px" },
      { label: "Lost", value: (row) => row.lost, show: (row) => (row.lost ? h("span", { class: "bad-text" }, count(row.lost)) : "0"), align: "right", width: "66px" },
      { label: "Waiting", value: (row) => row.buffered, show: (row) => count(row.buffered), align: "right", isMinor: true, width: "80px" },
      { label: "Last received", value: (row) => row.received_at, show: (row) => (row.received_at ? time(row.received_at) : "never"), align: "right", isMinor: true, width: "112px" },
      { label: "Gets", value: (row) => `${KINDS[row.kind]}${row.name ?? ""}`, isMinor: true },
      { label: "Since", value: (row) => row.began_at, show: (row) => h("span", { title: date(row.began_at) }, time(row.began_at)), isMinor: true, width: "88px" },
    ],
  });
}

export const bounds = (keep) => [keep.messages && `${count(keep.messages)} messages`, bytes(keep.size_bytes), keep.seconds && seconds(keep.seconds)].filter(Boolean).join(", ");

export function liveTail(main, first, signal) {
  const pattern = field("Pattern", "text", { value: first, required: true });
  const state = h("span", { class: "quiet", role: "status" });
  const list = messageTable("What is published", "Nothing has been published since.");
  let rows = [], stop = new AbortController(), skipped = 0, next = 0, isDrawn = true;
  const draw = () => { isDrawn = true; list.update(rows); };
  function start() {
    stop.abort();
    stop = new AbortController();
    signal.addEventListener("abort", () => stop.abort(), { once: true });
    rows = []; skipped = 0;
    draw();
    follow("api/v1/topic-stream", { pattern: pattern.input.value.trim() }, stop.signal, ({ event, data }) => {
      const said = JSON.parse(data);
      if (event === "skipped") { skipped += said.count; state.textContent = `following; ${count(skipped)} were left out, because they came too fast`; return; }
      rows.push({ ...said, key: next++ });
      if (rows.length > LISTED) rows = rows.slice(-LISTED);
      if (isDrawn) { isDrawn = false; requestAnimationFrame(draw); }
    }, (now, error) => { state.textContent = now === "open" ? "following" : now === "refused" ? error.message : "not connected"; });
  }
  const form = h("form", { class: "filters" }, pattern.element, h("button", { type: "submit" }, "Follow"), button("Clear", () => { rows = []; draw(); }), state);
  form.addEventListener("submit", (event) => { event.preventDefault(); if (location.hash.startsWith("#/topics?") || location.hash === "#/topics") history.replaceState(null, "", href("topics", { pattern: pattern.input.value })); start(); });
  main.append(panel("Live", h("p", { class: "quiet" }, "Choose a message to see all of it, and where it went."), form, list.element));
  start();
}

/** A link that closes the dialog it is in. */
const leaving = (where, text) => h("a", { href: where, onclick: (event) => event.target.closest("dialog").close() }, text);

/** A table of messages; rows have key, topic, offset, sent_at, kind, headers and payload. */
export function messageTable(label, empty) {
  return table({
    label, empty, key: (row) => row.key, sort: 0, isDescending: true, most: 460,
    onpick: (row) => dialog(`${row.topic}${row.offset ? ` at ${row.offset}` : ""}`, { fields: [
      h("p", { class: "quiet" }, `${date(row.sent_at)}, ${row.kind}, ${bytes(row.size_bytes)}`),
      isTraceable(row) && h("p", {}, leaving(whereabouts(row), "Where did this message go?")),
      h("p", {}, leaving(href("topics", row.topic), `Who gets ${row.topic}, and how many messages each received`)),
      Object.keys(row.headers ?? {}).length ? h("pre", {}, JSON.stringify(row.headers, null, 2)) : "",
      h("pre", { class: "secret" }, typeof row.payload === "string" ? row.payload : JSON.stringify(row.payload, null, 2)),
    ] }),
    columns: [
      { label: "At", value: (row) => row.sent_at, show: (row) => time(row.sent_at, { hasMillis: true }), width: "126px" },
      { label: "Topic", value: (row) => row.topic, width: "24%" },
      { label: "Offset", value: (row) => row.offset ?? null, align: "right", isMinor: true, width: "80px" },
      { label: "Kind", value: (row) => row.kind, show: (row) => badge(row.kind), isMinor: true, width: "90px" },
      { label: "Payload", value: (row) => (row.truncated ? `${bytes(row.size_bytes)}, too large to show` : value(row.payload).slice(0, 400)) },
    ],
  });
}

export function publish(topic) {
  const name = field("Topic", "text", { value: topic, required: true, placeholder: "orders.eu" });
  const kind = field("Payload is", ["json", "text"]);
  const payload = field("Payload", "textarea", { rows: 6, required: true, placeholder: '{"id": 7}' });
  const headers = field("Headers (JSON object, may stay empty)", "text", { placeholder: '{"source": "console"}' });
  dialog("Publish", {
    fields: [name, kind, payload, headers], submit: "Publish",
    act: async () => {
      const text = payload.input.value;
      const body = kind.input.value === "json" ? { json: JSON.parse(text) } : { text };
      if (headers.input.value.trim()) body.headers = JSON.parse(headers.input.value);
      const said = await ask("POST", own("topics", name.input.value.trim(), "messages"), { body });
      const got = said.subscribers ? `${plural(said.subscribers, "subscription")} of it ${said.subscribers === 1 ? "is" : "are"} known` : "nobody is known to subscribe";
      notice([`Published to ${said.topic}${said.offset ? ` at offset ${said.offset}` : ""}: ${got}. `, h("a", { href: whereabouts({ ...said, sent_at: Date.now() / 1000 }) }, "Where did it go?")], said.subscribers || said.offset ? "good" : "warn");
    },
  });
}

function retain() {
  const name = field("Topic", "text", { required: true });
  const messages = field("At most so many messages (may stay empty)", "number", { min: 1 });
  const age = field("At most so many seconds (may stay empty)", "number", { min: 1 });
  dialog("Retain a topic", {
    fields: [name, messages, age], submit: "Retain", text: "From now on what is published to it is stored, and can be read again from any offset.",
    act: async () => {
      const keep = { ...(messages.input.value && { messages: Number(messages.input.value) }), ...(age.input.value && { seconds: Number(age.input.value) }) };
      await ask("POST", own("topics", name.input.value.trim()), { body: { keep } });
      notice(`${name.input.value.trim()} is retained.`);
    },
  });
}
