// One topic: who gets it; of a retained one also its bounds, its history, and the durable names it is read under.

import { ask, everything, get, own, poll } from "../api.js";
import { button, dialog, facts, field, h, heading, href, link, notice, panel } from "../dom.js";
import { bytes, count, date, payload, plural } from "../format.js";
import { may } from "../rights.js";
import { table } from "../table.js";
import { bounds, keyedSubscribers, liveTail, messageTable, publish, subscriberTable } from "./topics.js";

const PAGE = 100;

export async function show(main, { parts: [topic], signal }) {
  const erase = may("admin") && button("Delete", () => remove(topic), { class: "danger", hidden: true });
  main.append(h("div", { class: "crumb" }, link(href("topics"), "Topics")), heading(topic,
    may("produce", topic) && button("Publish", () => publish(topic), { class: "primary" }), erase));
  const about = h("div", {}), got = h("p", { class: "quiet", role: "status" });
  const subscribers = subscriberTable(`Subscribers of ${topic}`, "Nobody subscribes to it now, by its name or by a pattern.");
  const history = h("div", {});
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
  const durable = panel("Durable names", positions.element);
  durable.hidden = true;
  main.append(panel("About", about), panel("Who gets it", got, subscribers.element), durable, history);
  poll(2, signal, async () => {
    const found = await get(own("topics", topic, "subscribers"), undefined, { signal });
    const lost = found.subscriptions.reduce((sum, one) => sum + one.lost, 0);
    got.textContent = `${plural(found.total, "subscription")} now${lost ? `, which lost ${count(lost)} messages` : ""}. Counts are of all topics that a subscription matches, as its process told in the last seconds.`;
    subscribers.update(keyedSubscribers(found.subscriptions));
  }, (error) => { got.textContent = error.message; });
  let isRetained = null;
  await poll(2, signal, async () => {
    const [found, listed] = await Promise.all([get(own("topics", topic), undefined, { signal }), everything(own("topics", topic, "positions"), {}, { signal })]);
    if (isRetained !== true) {
      isRetained = true;
      history.replaceChildren();
      durable.hidden = false;
      if (erase) erase.hidden = false;
      if (may("consume", topic)) showHistory(history, topic, signal);
    }
    about.replaceChildren(facts([["Stored messages", count(found.messages)], ["Stored bytes", bytes(found.size_bytes)], ["First offset", found.first_offset],
      ["Next offset", found.topic.next_offset], ["Oldest", date(found.oldest_at)], ["Bounds", bounds(found.topic.keep)], ["Created", date(found.topic.created_at)],
      ...(found.topic.home ? [["Home host", found.topic.home]] : [])]));
    positions.update(listed);
  }, (error) => {
    if (error.status !== 404 || isRetained === false) return;
    isRetained = false;
    durable.hidden = true;
    if (erase) erase.hidden = true;
    about.replaceChildren(h("p", {}, "A plain topic: what is published goes to whoever subscribes at that moment, and is not stored. It leaves no trace at the broker: the counts below say who got how many."));
    history.replaceChildren();
    if (may("consume")) liveTail(history, topic, signal);
  });
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
  main.append(panel("History", h("p", { class: "quiet" }, "Choose a message to see all of it, and where it went."), form, list.element));
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
