// One subject: its versions, two of them side by side, a check of a new one, its level and mode.

import { ask, get, own, path } from "../api.js";
import { badge, button, dialog, facts, field, h, heading, href, link, notice, panel } from "../dom.js";
import { may } from "../rights.js";
import { changed, lines, place, textView } from "../textview.js";
import { playground } from "./playground.js";

const LEVELS = ["NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "LAYOUT"];
const MODES = ["READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"];
const TABS = [["versions", "Versions"], ["compare", "Compare"], ["check", "Check a change"], ["settings", "Settings"]];

export async function show(main, { parts: [subject, tab = "versions"], query, signal }) {
  main.append(h("div", { class: "crumb" }, link(href("schemas"), "Schemas")),
    heading(subject, link(href("channels", subject), "Its channel"), may("schema-admin", subject) && button("Delete subject", () => remove(subject, null), { class: "danger" })),
    h("nav", { class: "tabs", "aria-label": "Parts of the subject" }, TABS.map(([name, title]) =>
      h("a", { href: href("schemas", subject, name), "aria-current": name === tab ? "page" : undefined }, title))));
  const body = h("div", {});
  main.append(body);
  if (tab === "check") return playground(body, { subject, isFixed: true, signal });
  if (tab === "settings") return settings(body, subject);
  const numbers = await get(path("subjects", subject, "versions"), { deleted: "true" }, { signal });
  if (tab === "compare") return compare(body, subject, numbers, query, signal);
  return versions(body, subject, numbers, query, signal);
}

async function versions(body, subject, numbers, query, signal) {
  const pick = field("Version", numbers.map(String).reverse(), { value: query.version ?? String(numbers.at(-1)) });
  const shown = h("div", {});
  body.append(h("div", { class: "filters" }, pick.element), shown);
  pick.input.addEventListener("change", () => { history.replaceState(null, "", href("schemas", subject, "versions", { version: pick.input.value })); draw(); });
  async function draw() {
    const number = pick.input.value;
    const [found, referrers] = await Promise.all([
      get(path("subjects", subject, "versions", number), { deleted: "true" }, { signal }),
      get(path("subjects", subject, "versions", number, "referencedby"), undefined, { signal }).catch(() => []),
    ]);
    const type = found.schemaType ?? "AVRO";
    shown.replaceChildren(panel(`Version ${number}`,
      facts([["Id", found.id], ["Type", type], ["Guid", found.guid], ["State", badge(found.deleted ? "deleted" : "active")],
        ["Refers to", found.references && h("span", {}, found.references.flatMap((one, at) => [at ? ", " : "", link(href("schemas", one.subject, "versions", { version: one.version }), `${one.subject} ${one.version}`)]))],
        ["Referred to by ids", referrers.join(", ")], ["Metadata", found.metadata && JSON.stringify(found.metadata)]]),
      h("h3", {}, "Schema"), textView(`Schema of version ${number}`, lines(found.schema, type)),
      may("schema-admin", subject) && h("div", { class: "actions" }, button("Delete this version", () => remove(subject, number, found.deleted), { class: "danger" }))));
  }
  await draw();
}

async function compare(body, subject, numbers, query, signal) {
  if (numbers.length < 2) { body.append(h("p", { class: "empty" }, "There is only one version.")); return; }
  const all = numbers.map(String);
  const from = field("From", all, { value: query.from ?? all.at(-2) });
  const to = field("To", all, { value: query.to ?? all.at(-1) });
  const direction = field("Differences for", ["readers of the new version", "readers of the old version"]);
  const shown = h("div", {});
  body.append(h("div", { class: "filters" }, from.element, to.element, direction.element), shown);
  for (const one of [from, to, direction]) one.input.addEventListener("change", () => {
    history.replaceState(null, "", href("schemas", subject, "compare", { from: from.input.value, to: to.input.value }));
    draw().catch((error) => shown.replaceChildren(h("p", { class: "failure" }, error.message)));
  });
  async function draw() {
    const [old, now] = await Promise.all([from, to].map((one) => get(path("subjects", subject, "versions", one.input.value), { deleted: "true" }, { signal })));
    const said = await get(own("schemas", subject, "diff"), { from: old.version, to: now.version }, { signal });
    const [oldType, nowType] = [old.schemaType ?? "AVRO", now.schemaType ?? "AVRO"];
    const [oldLines, nowLines] = [lines(old.schema, oldType), lines(now.schema, nowType)];
    const { removed, added } = changed(oldLines, nowLines);
    const isForward = direction.input.selectedIndex === 1;
    const differences = isForward ? said.forward : said.backward;
    const notes = isForward ? place(differences, oldLines, oldType, old.schema) : place(differences, nowLines, nowType, now.schema);
    const verdict = differences.length ? `${differences.length} of the changes would break ${direction.input.value}.` : `Nothing would break ${direction.input.value}.`;
    shown.replaceChildren(h("p", { class: `verdict ${differences.length ? "bad-text" : "good-text"}`, role: "status" }, verdict),
      h("div", { class: "side-by-side" },
        h("div", {}, h("h3", {}, `Version ${old.version}`), textView(`Version ${old.version}`, oldLines, { classes: removed, notes: isForward ? notes : undefined })),
        h("div", {}, h("h3", {}, `Version ${now.version}`), textView(`Version ${now.version}`, nowLines, { classes: added, notes: isForward ? undefined : notes }))));
  }
  await draw();
}

/** Level and mode of a subject or, without one, of the whole registry. */
export async function settings(body, subject) {
  const target = (kind) => (subject === null ? kind : path(kind, subject));
  const read = (kind, name) => get(target(kind), subject === null ? undefined : { defaultToGlobal: "true" }).then((found) => found[name]);
  const [level, mode] = await Promise.all([read("config", "compatibilityLevel"), read("mode", "mode")]);
  const isAllowed = may("schema-admin", subject ?? undefined);
  const levelField = field("Compatibility level", LEVELS, { value: level, disabled: !isAllowed });
  const modeField = field("Mode", MODES, { value: mode, disabled: !isAllowed });
  const save = async (kind, change, said) => {
    try {
      await ask("PUT", target(kind), { body: change });
      notice(said);
    } catch (error) { notice(error.message, "bad"); }
  };
  const parts = [
    panel("Compatibility", h("p", { class: "quiet" }, "What a new version must be able to read, and be read by, before it is registered."),
      h("div", { class: "filters" }, levelField.element, isAllowed && button("Set level", () => save("config", { compatibility: levelField.input.value }, `The level is ${levelField.input.value}.`)))),
    panel("Mode", h("p", { class: "quiet" }, "Whether new versions are taken. IMPORT takes versions with their ids, from another registry."),
      h("div", { class: "filters" }, modeField.element, isAllowed && button("Set mode", () => save("mode", { mode: modeField.input.value }, `The mode is ${modeField.input.value}.`)))),
  ];
  body.append(h("div", { class: "panels" }, ...parts));
}

/** Delete a version, or all of them: softly first, permanently if that was done before. What depends on it is said. */
async function remove(subject, number, isDeleted = false) {
  const where = number === null ? path("subjects", subject) : path("subjects", subject, "versions", number);
  const what = number === null ? subject : `version ${number} of ${subject}`;
  const permanent = field("Permanently (it must be deleted softly before)", "checkbox", { checked: isDeleted });
  const force = field("Also if somebody attached now works with it", "checkbox");
  const graph = await get(own("schema-graph")).catch(() => ({ subjects: [] }));
  const dependents = graph.subjects.filter((one) => one.versions.some((version) => !version.deleted && version.references.some((each) =>
    each.subject === subject && (number === null || each.version === Number(number))))).map((one) => one.subject);
  dialog(`Delete ${what}?`, {
    submit: "Delete", danger: true, fields: [permanent, force],
    text: dependents.length ? `These subjects refer to it, so it will be refused: ${dependents.join(", ")}.`
      : "Softly: it is hidden, and its id stays. Permanently: it is gone, and its id is never used again. No other schema refers to it.",
    act: async () => {
      const query = { ...(permanent.input.checked && { permanent: "true" }), ...(force.input.checked && { force: "true" }) };
      await ask("DELETE", where, { query });
      notice(`Deleted ${what}${permanent.input.checked ? " permanently" : ""}.`);
      if (number === null || permanent.input.checked) location.hash = href("schemas");
      else dispatchEvent(new HashChangeEvent("hashchange"));
    },
  });
}
