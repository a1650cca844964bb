// Where one message of a topic went: who published it, and what became of it at each subscription.
//
// The processes that subscribe answer with their next report, so it is asked again while somebody looks.

import { get, own, poll } from "../api.js";
import { badge, facts, field, h, href, link, panel } from "../dom.js";
import { date, payload, plural, programName, seconds, time } from "../format.js";
import { may } from "../rights.js";

const SEARCHED = 1000;
const SHOWN_HITS = 50;
const TEXT = {
  delivered: ["delivered", "good"], waiting: ["waiting", "warn"], lost: ["lost", "bad"], earlier: ["before it began", "quiet"],
  other_member: ["other member", "quiet"], not_heard: ["has not come", "warn"], unknown: ["not known any more", "quiet"],
  not_reported: ["asking …", "quiet"], acknowledged: ["acknowledged", "good"], handed_out: ["handed out", "warn"],
  dead_letter: ["dead letter", "bad"], ended: ["had ended", "quiet"],
};
const IN_ORDER = ["lost", "dead_letter", "not_heard", "waiting", "handed_out", "delivered", "acknowledged", "other_member", "earlier", "unknown", "not_reported", "ended"];
const SHOWN = 200;
const ENDED = { closed: "it was closed", silent: "its process was silent for 15 seconds, as one that was killed", SUBSCRIBER_TOO_SLOW: "its program left the buffer full (disconnect)" };

/** The reference of a message, as rows of messages have it: with an offset, or a publisher and a number. */
export const whereabouts = (row) => href("trace", { topic: row.topic, ...(row.offset ? { offset: row.offset } : { publisher: row.publisher, number: row.number, at: row.sent_at }) });
export const isTraceable = (row) => Boolean(row.offset || row.publisher);

/** The form that finds a message by what a person has of it. */
export function messageForm(query, signal) {
  const topic = field("Topic", "text", { value: query.topic ?? "", placeholder: "orders.eu", required: true });
  const number = field("Offset, or number", "number", { min: 1, value: query.offset ?? query.number ?? "", placeholder: "7" });
  const publisher = field("Publisher (plain topics)", "text", { value: query.publisher ?? "", placeholder: "message.publisher.hex()", pattern: "[0-9a-f]{16}" });
  const text = field("or text in a stored message", "search", { value: query.text ?? "", placeholder: "a name, an id …" });
  const form = h("form", { class: "filters" }, topic.element, number.element, publisher.element, text.element, h("button", { type: "submit" }, "Follow"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = topic.input.value.trim(), which = number.input.value, who = publisher.input.value.trim(), part = text.input.value.trim();
    const said = which ? (who ? { publisher: who, number: which } : { offset: which }) : part ? { text: part } : null;
    number.input.setCustomValidity(said ? "" : "Say which message: its offset or number, or a text that it holds.");
    if (said) location.hash = href("trace", { topic: name, ...said });
    else form.reportValidity();
  });
  number.input.addEventListener("input", () => number.input.setCustomValidity(""));
  text.input.addEventListener("input", () => number.input.setCustomValidity(""));
  const found = h("div", {});
  if (query.topic && query.text) search(found, query.topic, query.text, signal);
  return panel("Where did a message go?", h("p", { class: "quiet" }, "Choose a message in the live tail or the history of a topic (", link(href("topics"), "Topics"),
    "), or say which. A message of a retained topic has an offset; one of a plain topic has its publisher's id and number, as its subscribers see them."), form, found);
}

/** List the newest stored messages that hold a text. */
async function search(main, topic, text, signal) {
  const state = h("p", { class: "quiet", role: "status" }, "Searching …");
  main.replaceChildren(state);
  try {
    const { topic: kept } = await get(own("topics", topic), undefined, { signal });
    const hits = [];
    let offset = Math.max(kept.next_offset - SEARCHED, 1);
    while (offset) {
      const page = await get(own("topics", topic, "messages"), { offset, limit: SEARCHED }, { signal });
      for (const one of page.messages) {
        const shown = payload(one.payload, one.kind);
        if (`${shown} ${JSON.stringify(one.headers)}`.toLowerCase().includes(text.toLowerCase())) hits.push({ ...one, shown });
      }
      offset = page.next_offset < page.end_offset && page.messages.length ? page.next_offset : 0;
    }
    state.textContent = `${plural(hits.length, "message")} of the newest ${SEARCHED.toLocaleString("en")} of ${topic} ${hits.length === 1 ? "holds" : "hold"} "${text}"${hits.length > SHOWN_HITS ? `; the newest ${SHOWN_HITS} are shown` : ""}.`;
    main.append(h("ul", { class: "log", tabindex: "0", "aria-label": "Messages found" }, hits.slice(-SHOWN_HITS).reverse().map((one) =>
      h("li", {}, h("time", {}, time(one.at)), h("span", { class: "what" }, link(href("trace", { topic, offset: one.offset }), `offset ${one.offset}`), " ", one.shown.slice(0, 200))))));
  } catch (error) {
    if (error.name === "AbortError") return;
    state.textContent = error.status === 404 ? `${topic} is not retained, so none of its messages is stored: choose one in its live tail.` : error.message;
  }
}

export async function showMessage(main, query, signal) {
  const named = query.offset ? `${query.topic} at offset ${query.offset}` : `${query.topic}, number ${query.number}`;
  const summary = h("p", { class: "summary", role: "status" }, "Asking the processes that subscribe …");
  const about = h("div", {}), content = h("div", {});
  const list = h("div", {});
  let drawn = "";
  main.append(panel(`Message: ${named}`, summary, about), panel("What became of it", list), content);
  if (query.offset && may("consume", query.topic)) showContent(content, query, signal);
  await poll(1, signal, async () => {
    const found = await get(own("topics", query.topic, "trace"), { offset: query.offset, publisher: query.publisher, number: query.number }, { signal });
    const rows = rowsOf(found, found.published_at ?? Number(query.at ?? 0));
    if (drawn !== JSON.stringify(rows)) { drawn = JSON.stringify(rows); list.replaceChildren(fates(rows)); }
    summary.textContent = said(found, rows);
    const by = found.published_by;
    about.replaceChildren(facts([["Published by", by ? `${programName(by.program, "a process")}, pid ${by.pid} on ${by.host}` : "not known, or not any more"],
      [found.offset ? "Stored" : "Published", date(found.published_at ?? query.at)], ["Publisher", found.offset ? null : found.publisher],
      ["Request", found.correlation_id && link(href("trace", { id: found.correlation_id }), found.correlation_id)],
      ["Home", found.home && `${found.home}: who published it and its durable names are known to the hub there`], ["Topic", link(href("topics", found.topic), found.topic)]]));
  }, (error) => { summary.textContent = error.status === 404 ? `${error.message}. Of a plain topic, give the publisher and the number.` : error.message; });
}

/** One row for each subscription, where something went wrong first. */
function fates(rows) {
  if (!rows.length) return h("p", { class: "empty" }, "Nobody subscribes to the topic now, by its name or by a pattern.");
  return h("div", {}, h("table", { class: "free", "aria-label": "What became of it" },
    h("thead", {}, h("tr", {}, ["Program", "Process", "Subscribes to", "This message", "Why"].map((text, at) => h("th", { scope: "col", class: at === 1 ? "minor" : undefined }, text)))),
    h("tbody", {}, rows.slice(0, SHOWN).map((row) => h("tr", {}, h("td", { class: "wrap" }, programName(row.program)), h("td", { class: "minor" }, row.pid ? `${row.pid} on ${row.host ?? "–"}` : "–"),
      h("td", { class: "wrap" }, row.what), h("td", {}, badge(...TEXT[row.outcome])), h("td", { class: "wrap" }, row.letter ? ["given up: ", link(href("services"), `dead letter ${row.letter}`)] : row.reason ?? ""))))),
  rows.length > SHOWN && h("p", { class: "quiet" }, `${rows.length - SHOWN} more are not shown.`));
}

/** `at` is when it was published, as far as that is known: what had ended before is left out. */
function rowsOf(found, at) {
  const asked = found.subscriptions.map((one) => ({ ...one, what: one.patterns.join(", ") + (one.kind === "group" ? ` (group ${one.name})` : "") }));
  const durable = found.positions.map((one) => ({ ...one, program: `readers of ${one.position}`, what: `${found.topic} (durable name)`, reason: durableReason(one), letter: one.dead_letter }));
  const ended = found.ended.filter((one) => one.kind !== "durable" && one.ended_at >= at).map((one) => ({ ...one, what: one.patterns.join(", "), outcome: "ended",
    reason: `at ${time(one.ended_at)}: ${ENDED[one.ended_by] ?? one.ended_by}. It had received ${one.received} messages and lost ${one.lost}; which, is not known any more` }));
  return [...asked, ...durable, ...ended].map((row) => ({ program: row.program, pid: row.pid, host: row.host, what: row.what, outcome: row.outcome, reason: row.reason, letter: row.letter }))
    .sort((a, b) => IN_ORDER.indexOf(a.outcome) - IN_ORDER.indexOf(b.outcome));
}

function durableReason(one) {
  if (one.outcome === "acknowledged") return "acknowledged under this name, so it does not come again";
  if (one.outcome === "waiting") return "not handed out yet: messages before it come first";
  if (one.outcome === "earlier") return "the name began, or was reset to, a later message";
  if (one.outcome === "dead_letter") return "given up";
  const again = one.again_in_seconds ? `comes again in ${seconds(one.again_in_seconds)} unless it is acknowledged` : "free to be handed out again";
  return `handed out ${plural(one.deliveries, "time")}${one.pid ? ", held by that process" : ""}; ${again}`;
}

/** One sentence: how many got it, and what became of it at the others. */
function said(found, rows) {
  const live = rows.filter((row) => row.outcome !== "ended");
  if (!live.length) return "Nobody subscribes to the topic now, so nobody can say that it got it.";
  const parts = IN_ORDER.map((outcome) => [live.filter((row) => row.outcome === outcome).length, TEXT[outcome][0]]).filter(([number]) => number).map(([number, text]) => `${number} ${text}`);
  return `${plural(live.length, "subscription")}: ${parts.join(", ")}.`;
}

async function showContent(main, query, signal) {
  const page = await get(own("topics", query.topic, "messages"), { offset: query.offset, limit: 1 }, { signal }).catch(() => null);
  const [one] = page?.messages ?? [];
  if (!one || one.offset !== Number(query.offset)) return main.append(panel("What it says", h("p", { class: "empty" }, "It is not stored any more: the topic's bounds removed it.")));
  return main.append(panel("What it says", Object.keys(one.headers).length ? h("pre", { class: "secret" }, JSON.stringify(one.headers, null, 2)) : "", h("pre", { class: "secret" }, payload(one.payload, one.kind).slice(0, 20_000))));
}
