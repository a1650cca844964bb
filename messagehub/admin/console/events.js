// Events of the hub in words, as a list that grows at its top.

import { follow } from "./api.js";
import { badge, h, href, link } from "./dom.js";
import { time } from "./format.js";

const MOST = 200;
const BAD = ["STALLED", "CONFLICTED", "DESTROYED", "DELETED"];

/** What happened, and the thing it happened to. */
export function describe(event) {
  const member = event.producer_id ?? event.consumer_id ?? event.producer?.producer_id ?? event.consumer?.consumer_id ?? event.worker_id;
  const what = event.type.toLowerCase().replaceAll("_", " ").replace("topic kept", "topic retained");
  const why = event.reason ? ` (${event.reason})` : "";
  if (event.channel) return [what, why, member && `: ${member}`, " · ", link(href("channels", event.channel), event.channel)];
  if (event.schema) return [what, " · ", link(href("schemas", event.schema.subject), `${event.schema.subject} version ${event.schema.version}`)];
  if (event.subject !== undefined) return [what, " · ", event.subject ? link(href("schemas", event.subject), event.subject) : "all subjects"];
  if (event.name) return [what, " · ", link(href("topics", event.name), event.name)];
  const address = event.service?.address ?? event.address;
  return [what, why, address && " · ", address && link(href("services"), address)];
}

/** A list of what happened lately, as far as the hub's HTTP process has followed it, and of what happens from now on. */
export function eventLog(query, signal) {
  const empty = h("p", { class: "empty" }, "Nothing is remembered, and nothing has happened since this view was opened. Events are followed while somebody looks, and for an hour after.");
  const list = h("ul", { class: "log", tabindex: "0", "aria-label": "Events" });
  follow("api/v1/events", { ...query, newest: MOST }, signal, ({ event, data }) => {
    empty.hidden = true;
    if (event === "gap") {
      list.prepend(h("li", {}, h("time", {}, "–"), h("span", { class: "what warn-text" }, "some events were missed")));
      return;
    }
    const said = JSON.parse(data);
    const tone = BAD.some((word) => said.type.includes(word)) || ["died", "expired", "evicted", "host_lost"].includes(said.reason) ? "warn" : undefined;
    list.prepend(h("li", {}, h("time", {}, time(said.at)), h("span", { class: "what" }, tone && badge("!", tone), tone && " ", ...describe(said).filter(Boolean))));
    while (list.childElementCount > MOST) list.lastElementChild.remove();
  }, (state, error) => {
    if (state === "refused") { empty.hidden = false; empty.textContent = error.message; }
  });
  return h("div", {}, empty, list);
}
