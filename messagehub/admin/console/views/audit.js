// The audit log: who changed what, and who was refused.

import { get, own, poll } from "../api.js";
import { badge, field, h, heading, href, link, panel } from "../dom.js";
import { date, plural } from "../format.js";
import { table } from "../table.js";

const LIMITS = { "last 100": 100, "last 1,000": 1000, "last 10,000": 10000 };
const SPANS = { "all times": 0, "last 5 minutes": 300, "last hour": 3600, "last day": 86400 };

export async function show(main, { query, signal }) {
  const inputs = {
    who: field("Who", "search", { value: query.who ?? "" }), event: field("Event", ["", "changed", "refused", "connected", "disconnected"], { value: query.event ?? "" }),
    request: field("Request", "search", { value: query.request ?? "" }), name: field("About", "search", { value: query.name ?? "" }), code: field("Code", "search", { value: query.code ?? "" }),
  };
  const span = field("Since", Object.keys(SPANS)), limit = field("Lines", Object.keys(LIMITS));
  const total = h("span", { class: "quiet", role: "status" });
  const list = table({
    label: "Audit log", key: (row) => row.key, sort: 0, isDescending: true, most: Math.max(innerHeight - 280, 320), empty: "No line matches.",
    columns: [
      { label: "At", value: (row) => row.at, show: (row) => date(row.at), width: "178px" },
      { label: "Event", value: (row) => row.event, show: (row) => badge(row.event, row.event === "refused" ? "warn" : undefined), width: "104px" },
      { label: "Who", value: (row) => row.who ?? "", width: "11%" },
      { label: "Request", value: (row) => row.request ?? "" },
      { label: "About", value: (row) => [row.name, row.member].filter(Boolean).join(": "), depends: (row) => row.member },
      { label: "Code", value: (row) => row.code ?? "", isMinor: true, width: "104px" },
      { label: "Log", value: (row) => row.log ?? "", isMinor: true, width: "58px" },
      { label: "Trace", value: (row) => row.correlation_id ?? row.request_id ?? "", isMinor: true, width: "112px",
        show: (row) => { const id = row.correlation_id ?? row.request_id; return id ? link(href("trace", { id }), id) : "–"; } },
    ],
  });
  const asked = () => ({ ...Object.fromEntries(Object.entries(inputs).map(([name, one]) => [name, one.input.value.trim()])),
    limit: LIMITS[limit.input.value], since: SPANS[span.input.value] ? (Date.now() / 1000 - SPANS[span.input.value]).toFixed(3) : "" });
  const load = async () => {
    const found = await get(own("audit"), asked(), { signal });
    total.textContent = plural(found.length, "line");
    list.update(found.map((line, at) => ({ ...line, key: `${line.log} ${line.at} ${line.request_id ?? line.correlation_id ?? ""} ${found.length - at}` })));
  };
  for (const one of [...Object.values(inputs), span, limit]) one.input.addEventListener("change", () => load().catch(() => {}));
  main.append(heading("Audit", total), h("div", { class: "filters" }, Object.values(inputs).map((one) => one.element), span.element, limit.element), panel("Lines", list.element));
  await poll(5, signal, load, (error) => { total.textContent = error.message; });
}
