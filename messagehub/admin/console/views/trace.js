// Where a message went (message.js), and exchanges that the broker remembers; of one correlation id, both sides as a
// timeline.

import { get, own, poll } from "../api.js";
import { badge, field, h, heading, href, link, panel } from "../dom.js";
import { seconds, time } from "../format.js";
import { may } from "../rights.js";
import { table } from "../table.js";
import { messageForm, showMessage } from "./message.js";

const LISTED = 500;

export async function show(main, { query, signal }) {
  const id = field("Correlation id", "search", { value: query.id ?? "", placeholder: "from a log, an error or the table" });
  const part = field("About", "search", { placeholder: "part of a name, or of a request's type" });
  id.element.classList.add("wide");
  const form = h("form", { class: "filters" }, id.element, part.element, h("button", { type: "submit" }, "Find"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = href("trace", id.input.value.trim() ? { id: id.input.value.trim() } : {});
  });
  const message = h("div", {});
  main.append(heading("Trace"), message, messageForm(query, signal));
  if (query.topic && (query.offset || query.number)) return showMessage(message, query, signal);
  if (query.text) return undefined;
  main.append(panel("What did a request lead to?", form));
  if (query.id) return one(main, query.id, signal);
  const list = exchanges("Newest exchanges");
  main.append(panel("Newest exchanges", h("p", { class: "quiet" }, "What passed the broker: registrations, discoveries, publications to retained topics, and the address of a service before a request goes to it directly. ",
    "Messages of plain topics pass by unseen: the processes that subscribe are asked about one, above."), list.element));
  let all = [];
  const draw = () => { const text = part.input.value.trim().toUpperCase(); list.update(all.filter((each) => !text || `${each.request} ${each.name ?? ""}`.toUpperCase().includes(text))); };
  part.input.addEventListener("input", draw);
  await poll(2, signal, async () => { all = keyed(await get(own("traces"), { limit: LISTED }, { signal })); draw(); });
}

const keyed = (found) => found.map((each, at) => ({ ...each, key: `${each.side} ${each.at} ${each.correlation_id} ${found.length - at}` }));
const isError = (each) => /ERROR|REFUSED|FORBIDDEN|TIMEOUT/.test(each.answer ?? "") || !/(^ok|_ACK|RESPONSE|PONG|REPORT)$/.test(each.answer ?? "");

function exchanges(label) {
  return table({
    label, key: (row) => row.key, sort: 0, isDescending: true, most: Math.max(innerHeight - 280, 320), empty: "The broker remembers no such exchange.",
    columns: [
      { label: "At", value: (row) => row.at, show: (row) => time(row.at, { hasMillis: true }), width: "126px" },
      { label: "Side", value: (row) => row.side, isMinor: true, width: "70px" },
      { label: "Request", value: (row) => row.request, width: "20%" },
      { label: "About", value: (row) => row.name ?? "", show: (row) => about(row) },
      { label: "Answer", value: (row) => row.answer, show: (row) => (isError(row) ? badge(row.answer, "warn") : row.answer) },
      { label: "Took", value: (row) => row.seconds, show: (row) => seconds(row.seconds), align: "right", width: "84px" },
      { label: "Peer", value: (row) => row.peer, isMinor: true, width: "120px" },
      { label: "Correlation id", value: (row) => row.correlation_id ?? "", show: (row) => (row.correlation_id ? link(href("trace", { id: row.correlation_id }), row.correlation_id) : "–"), isMinor: true },
    ],
  });
}

/** What an exchange was about, as a link to its view. */
function about({ request, name, offset, messages }) {
  if (!name) return "–";
  if (offset) return link(href("trace", { topic: name, offset }), `${name} at ${offset}${messages > 1 ? ` to ${offset + messages - 1}` : ""}`);
  if (/^(TOPIC|MESSAGE|POSITION|SUBSCRI)/.test(request)) return link(href("topics", name), name);
  if (/^(SCHEMA)/.test(request)) return link(href("schemas", name), name);
  if (/^(SERVICE|POOL|DEAD_LETTER)/.test(request)) return link(href("services"), name);
  return /^(TOKEN|KEY)/.test(request) ? name : link(href("channels", name), name);
}

async function one(main, id, signal) {
  const found = (await get(own("traces"), { id, limit: LISTED }, { signal })).sort((a, b) => a.at - b.at);
  const ids = new Set([id, ...found.flatMap((each) => [each.correlation_id, each.led_to])].filter(Boolean));
  const noted = may("admin") ? (await get(own("audit"), { limit: 1000 }, { signal }).catch(() => [])).filter((line) => ids.has(line.correlation_id) || ids.has(line.request_id)) : [];
  const begin = Math.min(...found.map((each) => each.at)), end = Math.max(...found.map((each) => each.at + each.seconds));
  const lanes = found.map((each) => {
    const bar = h("span", { class: `span ${isError(each) ? "bad" : each.side === "broker" ? "" : "s1"}` });
    bar.style.left = `${((each.at - begin) / (end - begin || 1)) * 100}%`;
    bar.style.width = `${(each.seconds / (end - begin || 1)) * 100}%`;
    return h("div", { class: "lane" }, h("span", {}, `${each.side}: ${each.request} `, each.name ? about(each) : ""), h("span", { class: "track" }, bar), h("span", {}, seconds(each.seconds)));
  });
  main.append(panel(`Timeline of ${id}`, found.length
    ? h("div", { class: "timeline" }, h("p", { class: "quiet" }, `From ${time(begin, { hasMillis: true })}, ${seconds(end - begin)} in all.`), ...lanes)
    : h("p", { class: "empty" }, "Nobody remembers an exchange with this id: the broker and the HTTP process keep the newest ones only, and a message of a plain topic leaves none: follow it by its topic, publisher and number.")));
  if (noted.length) main.append(panel("In the audit log", h("ul", { class: "log", tabindex: "0", "aria-label": "Audit lines" }, noted.map((line) => h("li", {}, h("time", {}, time(line.at)), h("span", { class: "what" }, `${line.event}: ${line.request ?? ""} ${[line.name, line.member].filter(Boolean).join(": ")} by ${line.who}${line.code ? `, ${line.code}` : ""}`))))));
  const list = exchanges("Exchanges with this id");
  main.append(panel("Exchanges", list.element));
  list.update(keyed(found));
}
