// Subjects as a table and as a graph of references, a check of new ones, and the settings of the whole registry.

import { get, own } from "../api.js";
import { badge, field, h, heading, href, link, panel, svg } from "../dom.js";
import { plural } from "../format.js";
import { onChange } from "../live.js";
import { may } from "../rights.js";
import { table } from "../table.js";
import { playground } from "./playground.js";
import { settings, show as showOne } from "./subject.js";

const TABS = [["", "Subjects"], ["graph", "References"], ["playground", "Check a change"], ["settings", "Settings"]];
const DRAWN = 60;

export async function show(main, place) {
  if (place.parts.length) return showOne(main, place);
  const { query: { tab = "", ...query }, signal } = place;
  const total = h("span", { class: "quiet" });
  main.append(heading("Schemas", total), h("nav", { class: "tabs", "aria-label": "Parts of the registry" }, TABS.map(([name, title]) =>
    h("a", { href: href("schemas", name ? { tab: name } : {}), "aria-current": name === tab ? "page" : undefined }, title))));
  const body = h("div", {});
  main.append(body);
  if (tab === "playground") return playground(body, { subject: query.subject ?? "", signal });
  if (tab === "settings") return settings(body, null);
  const search = field("Search", "search", { placeholder: "part of a name" });
  const deleted = field("Also deleted ones", "checkbox");
  search.element.classList.add("wide");
  const holder = h("div", {});
  body.append(h("div", { class: "filters" }, search.element, deleted.element), holder);
  const list = subjectTable();
  let subjects = [];
  const draw = () => {
    const part = search.input.value.trim().toLowerCase();
    const found = subjects.filter((one) => one.subject.toLowerCase().includes(part));
    total.textContent = plural(found.length, "subject");
    if (tab === "graph") holder.replaceChildren(graph(found));
    else { if (!list.element.isConnected) holder.append(list.element); list.update(found); }
  };
  const load = async () => {
    subjects = (await get(own("schema-graph"), deleted.input.checked ? { deleted: "true" } : undefined, { signal })).subjects;
    draw();
    return subjects.length;
  };
  search.input.addEventListener("input", draw);
  deleted.input.addEventListener("change", () => load().catch(() => {}));
  await onChange(signal, load);
}

function subjectTable() {
  const newest = (row) => row.versions.at(-1);
  return table({
    label: "Subjects", key: (row) => row.subject, most: Math.max(innerHeight - 290, 320),
    empty: "No subject matches. A subject begins with its first version: it can be checked and registered under Check a change.",
    columns: [
      { label: "Subject", value: (row) => row.subject, show: (row) => link(href("schemas", row.subject), row.subject), width: "44%" },
      { label: "Type", value: (row) => newest(row).schema_type, width: "100px" },
      { label: "Versions", value: (row) => row.versions.length, align: "right", width: "90px" },
      { label: "Newest id", value: (row) => newest(row).id, align: "right", isMinor: true, width: "100px" },
      { label: "Refers to", value: (row) => newest(row).references.map((one) => one.subject).join(", "), isMinor: true },
      { label: "State", value: (row) => (row.versions.every((one) => one.deleted) ? "deleted" : "active"), show: (row) => badge(row.versions.every((one) => one.deleted) ? "deleted" : "active"), width: "90px" },
    ],
  });
}

/** Who refers to whom: each subject stands right of all that it refers to. */
function graph(subjects) {
  const uses = new Map(subjects.map((one) => [one.subject, [...new Set(one.versions.at(-1).references.map((each) => each.subject))]]));
  const names = [...uses].flatMap(([name, used]) => (used.length ? [name, ...used] : []));
  const drawn = [...new Set(names)].slice(0, DRAWN);
  if (!drawn.length) return h("p", { class: "empty" }, "No schema refers to another one.");
  const depth = new Map();
  const deep = (name, seen) => {
    if (depth.has(name)) return depth.get(name);
    if (seen.has(name)) return 0;
    const found = Math.max(-1, ...(uses.get(name) ?? []).map((one) => deep(one, new Set([...seen, name])))) + 1;
    depth.set(name, found);
    return found;
  };
  drawn.forEach((name) => deep(name, new Set()));
  const rows = new Map(), places = new Map();
  for (const name of drawn) {
    const row = rows.get(depth.get(name)) ?? 0;
    rows.set(depth.get(name), row + 1);
    places.set(name, { x: 10 + depth.get(name) * 330, y: 10 + row * 56 });
  }
  const width = 10 + (Math.max(...depth.values()) + 1) * 330, height = 20 + Math.max(...rows.values()) * 56;
  const edges = drawn.flatMap((name) => (uses.get(name) ?? []).filter((one) => places.has(one)).map((one) => {
    const [from, to] = [places.get(one), places.get(name)];
    const middle = (from.x + 220 + to.x) / 2;
    return svg("path", { d: `M${from.x + 220} ${from.y + 20}C${middle} ${from.y + 20} ${middle} ${to.y + 20} ${to.x} ${to.y + 20}`, class: "edge", "stroke-width": 1.5 });
  }));
  const boxes = drawn.map((name) => {
    const { x, y } = places.get(name);
    const versions = subjects.find((one) => one.subject === name)?.versions.length;
    const sub = versions ? plural(versions, "version") : "not shown";
    return svg("a", { href: href("schemas", name), class: "node", "aria-label": `${name}, ${sub}` }, svg("rect", { x, y, width: 220, height: 40, rx: 6 }),
      svg("text", { x: x + 10, y: y + 17 }, name.length > 30 ? `${name.slice(0, 29)}…` : name), svg("text", { x: x + 10, y: y + 33, class: "sub" }, sub));
  });
  return h("div", { class: "map panel", tabindex: "0", role: "region", "aria-label": "References" }, svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Subjects and what they refer to" }, ...edges, ...boxes));
}
