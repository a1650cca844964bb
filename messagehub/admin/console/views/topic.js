// One retained topic: its bounds, its history by offset or time, and who reads it under which durable name.

import { ask, everything, get, own, poll } from "../api.js";
import { button, dialog, facts, field, h, heading, href, link, notice, panel } from "../dom.js";
import { bytes, count, date, payload } from "../format.js";
import { may } from "../rights.js";
import { table } from "../table.js";
import { bounds, messageTable, publish } from "./topics.js";

const PAGE = 100;

export async function show(main, { parts: [topic], signal }) {
  main.append(h("div", { class: "crumb" }, link(href("topics"), "Topics")), heading(topic,
    may("produce", topic) && button("Publish", () => publish(topic), { class: "primary" }),
    may("admin") && button("Delete", () => remove(topic), { class: "danger" })));
  const about = h("div", {});
  const positions = table({
    label: "Durable names", key: (row) => row.position.name, most: 260, empty: "Nobody reads it under a durable name.",
    columns: [
      { label: "Name", value: (row) => row.position.name, width: "34%" },
      { label: "Done to", value: (row) => row.acknowledged_to, align: "right" },
      { label: "Not acknowledged", value: (row) => row.unacked, align: "right", isMinor: true },
      { label: "Lag", value: (row) => row.lag, show: (row) => count(row.lag), align: "right" },
      ...(may("admin") ? [{ label: "Change", align: "right", width: "160px", depends: (row) => row.position.name, show: (row) => [
        button("Reset", () => reset(topic, row.position.name), { class: "small", "aria-label": `Reset ${row.position.name}` }), " ",
        button("Delete", () => forget(topic, row.position.name), { class: "small danger", "aria-label": `Delete ${row.position.name}` })] }] : []),
    ],
  });
  main.append(panel("About", about), panel("Durable names", positions.element));
  if (may("consume", topic)) showHistory(main, topic, signal);
  await poll(2, signal, async () => {
    const [found, listed] = await Promise.all([get(own("topics", topic), undefined, { signal }), everything(own("topics", topic, "positions"), {}, { signal })]);
    about.replaceChildren(facts([["Stored messages", count(found.messages)], ["Stored bytes", bytes(found.size_bytes)], ["First offset", found.first_offset],
      ["Next offset", found.topic.next_offset], ["Oldest", date(found.oldest_at)], ["Bounds", bounds(found.topic.keep)], ["Created", date(found.topic.created_at)]]));
    positions.update(listed);
  }, (error) => { if (error.status === 404) about.replaceChildren(h("p", { class: "failure" }, error.message)); });
}

function showHistory(main, topic, signal) {
  const offset = field("From offset", "number", { min: 0, placeholder: "oldest" });
  const since = field("or from time", "datetime-local", { step: 1 });
  const list = messageTable(`Messages of ${topic}`, "Nothing is stored from there on.");
  const state = h("span", { class: "quiet", role: "status" });
  const older = button("Newest", () => read("newest"));
  const more = button("Next page", () => read("next"), { disabled: true });
  let following = null;
  async function read(how) {
    try {
      const query = { limit: PAGE };
      if (how === "next") query.offset = following;
      else if (how === "newest") query.offset = Math.max((await get(own("topics", topic))).topic.next_offset - PAGE, 0);
      else if (since.input.value) query.since = new Date(since.input.value).getTime() / 1000;
      else query.offset = offset.input.value || 0;
      const page = await get(own("topics", topic, "messages"), query, { signal });
      list.update(page.messages.map((one) => ({ key: one.offset, topic, offset: one.offset, sent_at: one.at, kind: one.kind, headers: one.headers,
        size_bytes: Math.floor(one.payload.length * 3 / 4), payload: payload(one.payload, one.kind) })));
      following = page.next_offset;
      more.disabled = page.next_offset >= page.end_offset;
      state.textContent = page.messages.length ? `offsets ${page.messages[0].offset} to ${page.messages.at(-1).offset}` : "";
    } catch (error) { state.textContent = error.message; }
  }
  const form = h("form", { class: "filters" }, offset.element, since.element, h("button", { type: "submit" }, "Read"), more, older, state);
  form.addEventListener("submit", (event) => { event.preventDefault(); read("given"); });
  main.append(panel("History", form, list.element));
  read("newest");
}

function reset(topic, name) {
  const where = field("Go on from", ["oldest", "newest"]);
  const offset = field("or from offset", "number", { min: 0 });
  dialog(`Reset ${name}`, {
    fields: [where, offset], submit: "Reset", text: "Whatever was acknowledged, it goes on from there.",
    act: async () => {
      const body = offset.input.value ? { offset: Number(offset.input.value) } : { place: where.input.value };
      await ask("POST", own("topics", topic, "positions", name), { body });
      notice(`${name} goes on from ${offset.input.value || where.input.value}.`);
    },
  });
}

const forget = (topic, name) => dialog(`Delete ${name}?`, {
  submit: "Delete", danger: true, text: "Who reads under this name is told.",
  act: async () => { await ask("DELETE", own("topics", topic, "positions", name)); notice(`Deleted ${name}.`); },
});

const remove = (topic) => dialog(`Delete ${topic}?`, {
  submit: "Delete", danger: true, text: "What is stored is deleted, and the topic is a plain one from then on.",
  act: async () => { await ask("DELETE", own("topics", topic)); notice(`Deleted ${topic}.`); location.hash = href("topics"); },
});
