// Retained topics, and what is published to any topic as it comes; `#/topics/NAME` shows one retained topic.

import { ask, everything, follow, own } from "../api.js";
import { badge, button, dialog, field, h, heading, href, link, notice, panel } from "../dom.js";
import { bytes, count, date, seconds, time, value } from "../format.js";
import { onChange } from "../live.js";
import { may } from "../rights.js";
import { table } from "../table.js";
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
      { label: "Next offset", value: (row) => row.next_offset, align: "right" },
      { label: "Ever stored", value: (row) => row.total_bytes, show: (row) => bytes(row.total_bytes), align: "right", isMinor: true },
      { label: "Bounds", value: (row) => bounds(row.keep), isMinor: true },
      { label: "Created", value: (row) => row.created_at, show: (row) => date(row.created_at), isMinor: true, width: "178px" },
    ],
  });
  main.append(panel("Retained topics", list.element));
  if (may("consume")) liveTail(main, query.pattern ?? ">", signal);
  await onChange(signal, async () => {
    const topics = await everything(own("topics"), {}, { signal });
    list.update(topics);
    return topics.length;
  });
}

export const bounds = (keep) => [keep.messages && `${count(keep.messages)} messages`, bytes(keep.size_bytes), keep.seconds && seconds(keep.seconds)].filter(Boolean).join(", ");

function liveTail(main, first, signal) {
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
  form.addEventListener("submit", (event) => { event.preventDefault(); history.replaceState(null, "", href("topics", { pattern: pattern.input.value })); start(); });
  main.append(panel("Live", form, list.element));
  start();
}

/** A table of messages; rows have key, topic, offset, sent_at, kind, headers and payload. */
export function messageTable(label, empty) {
  return table({
    label, empty, key: (row) => row.key, sort: 0, isDescending: true, most: 460,
    onpick: (row) => dialog(`${row.topic}${row.offset ? ` at ${row.offset}` : ""}`, { submit: "Close", act: async () => {}, fields: [
      h("p", { class: "quiet" }, `${date(row.sent_at)}, ${row.kind}, ${bytes(row.size_bytes)}`),
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
      notice(`Published to ${said.topic}${said.offset ? ` at offset ${said.offset}` : ""}.`);
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
