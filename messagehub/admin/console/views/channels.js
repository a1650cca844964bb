// All channels: a table with search, filter and sort; `#/channels/NAME` shows one of them.

import { ask, get, own, pages, poll } from "../api.js";
import { badge, button, dialog, field, h, heading, href, link, notice } from "../dom.js";
import { byteRate, count, plural, rate, seconds } from "../format.js";
import { lagTone, onChange } from "../live.js";
import { may } from "../rights.js";
import { table } from "../table.js";
import { show as showOne } from "./channel.js";

const MANY = 1000;

export async function show(main, place) {
  if (place.parts.length) return showOne(main, place);
  const { query, signal } = place;
  const search = field("Search", "search", { value: query.q ?? "", placeholder: "part of a name" });
  const status = field("Status", ["", "active", "pending", "stalled", "conflict"], { value: query.status ?? "" });
  const total = h("span", { class: "quiet", role: "status" });
  let all = [];
  let flows = new Map();
  const flow = (row) => flows.get(row.channel);
  const list = table({
    label: "Channels", key: (row) => row.channel, most: Math.max(innerHeight - 230, 320),
    empty: "No channel matches. A channel begins with its first producer or consumer.",
    columns: [
      { label: "Channel", value: (row) => row.channel, show: (row) => link(href("channels", row.channel), row.channel), width: "32%" },
      { label: "Status", value: (row) => row.status, show: (row) => badge(row.status), width: "90px" },
      { label: "Schema", value: (row) => row.schema_version ?? "", isMinor: true, width: "90px" },
      { label: "Producers", value: (row) => row.producer_count, align: "right", isMinor: true, width: "92px" },
      { label: "Consumers", value: (row) => row.consumer_count, align: "right", isMinor: true, width: "98px" },
      { label: "Items/s", value: (row) => flow(row)?.items_per_second ?? null, show: (row) => rate(flow(row)?.items_per_second, ""), align: "right", width: "84px" },
      { label: "Bytes/s", value: (row) => flow(row)?.bytes_per_second ?? null, show: (row) => byteRate(flow(row)?.bytes_per_second), align: "right", isMinor: true, width: "100px" },
      { label: "Lag", value: (row) => flow(row)?.lag_seconds ?? null, depends: (row) => flow(row)?.lag_items, show: (row) => lag(flow(row)), align: "right", width: "150px" },
    ],
  });

  function draw() {
    const part = search.input.value.trim().toLowerCase(), wanted = status.input.value;
    const found = all.filter((row) => (!part || row.channel.toLowerCase().includes(part)) && (!wanted || row.status === wanted));
    total.textContent = found.length === all.length ? plural(all.length, "channel") : `${found.length.toLocaleString("en")} of ${plural(all.length, "channel")}`;
    list.update(found);
  }

  function filter() {
    history.replaceState(null, "", href("channels", { ...(search.input.value && { q: search.input.value }), ...(status.input.value && { status: status.input.value }) }));
    draw();
  }
  search.input.addEventListener("input", filter);
  status.input.addEventListener("change", filter);
  search.element.classList.add("wide");
  main.append(heading("Channels", total, may("admin") && button("Create channel", create, { class: "primary" })),
    h("div", { class: "filters" }, search.element, status.element), list.element);

  onChange(signal, async () => {
    const found = [];
    for await (const page of pages(own("channels"), {}, { signal })) {
      found.push(...page);
      if (!all.length) { all = [...found]; draw(); } // the first page is shown while the others come
    }
    all = found;
    draw();
    return all.length;
  });
  poll(2, signal, async () => {
    const seen = list.inSight().sort();
    if (!seen.length) return;
    const range = all.length > MANY ? { after: seen[0].slice(0, -1), limit: 200 } : { limit: MANY };
    const said = await get(own("flow"), range, { signal });
    flows = new Map(said.channels.map((one) => [one.channel, one]));
    draw();
  });
}

function lag(one) {
  if (!one || !one.readers) return "–";
  if (one.is_held_back) return h("span", { class: "bad-text" }, `writer waits, ${seconds(one.lag_seconds)}`);
  if (!one.lag_items) return "0";
  return h("span", { class: lagTone(one) ? `${lagTone(one)}-text` : undefined }, `${count(one.lag_items)} · ${seconds(one.lag_seconds)}`);
}

function create() {
  const name = field("Name", "text", { required: true, placeholder: "sensors.boiler" });
  const access = field("Access", ["", "exclusive", "shared"]);
  const priority = field("Priority", ["normal", "high", "low"]);
  const type = field("Schema type", ["JSON", "AVRO", "PROTOBUF", "ARROW"], { value: "ARROW" });
  const schema = field("Schema (may stay empty)", "textarea", { placeholder: '{"fields": [{"name": "at", "type": "float64"}]}' });
  dialog("Create channel", {
    fields: [name, access, priority, type, schema], submit: "Create",
    text: "A channel that is created stays until it is destroyed, also without members. What it declares binds its producers.",
    act: async () => {
      const text = schema.input.value.trim();
      const body = { priority: priority.input.value, ...(access.input.value && { access: access.input.value }) };
      if (text) Object.assign(body, { schema: text, schema_type: type.input.value });
      await ask("POST", own("channels", name.input.value.trim()), { body });
      notice(`Created ${name.input.value.trim()}.`);
      location.hash = href("channels", name.input.value.trim());
    },
  });
}
