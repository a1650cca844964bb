// Paste a schema: could it be registered, what stands in the way, and who of those attached now would break?

import { ask, get, own, path } from "../api.js";
import { badge, button, field, h, notice, panel } from "../dom.js";
import { may } from "../rights.js";
import { differenceNote, lines, place, textView } from "../textview.js";

const TYPES = ["JSON", "AVRO", "PROTOBUF", "ARROW"];

export async function playground(body, { subject = "", isFixed = false, signal }) {
  const name = field("Subject", "text", { value: subject, required: true, placeholder: "sensors.boiler", readonly: isFixed });
  const type = field("Type", TYPES);
  const references = field("References (JSON list, may stay empty)", "textarea", { rows: 2, placeholder: '[{"name": "common", "subject": "common", "version": 1}]' });
  const text = field("Schema", "textarea", { rows: 18, required: true });
  const result = h("div", { role: "status" });
  const register = button("Register", send, { class: "primary", disabled: true });
  const form = h("form", { class: "dialog-form" }, h("div", { class: "filters" }, name.element, type.element,
    button("Load newest", load)), text.element, references.element,
    h("div", { class: "actions" }, h("button", { type: "submit" }, "Check"), may("schema-admin") && register));
  name.element.classList.add("wide");
  const failure = h("p", { class: "failure", role: "alert" });
  body.append(h("div", { class: "side-by-side" }, panel("New version", form), panel("Result", failure, result)));
  form.addEventListener("submit", (event) => { event.preventDefault(); check(); });
  for (const one of [text, name, type]) one.input.addEventListener("input", () => { register.disabled = true; });

  function sent() {
    const given = references.input.value.trim();
    return { schema: text.input.value, schemaType: type.input.value, ...(given && { references: JSON.parse(given) }) };
  }

  async function load() {
    try {
      const found = await get(path("subjects", name.input.value.trim(), "versions", "latest"), undefined, { signal });
      type.input.value = found.schemaType ?? "AVRO";
      text.input.value = lines(found.schema, type.input.value).map((line) => line.text).join("\n");
      references.input.value = found.references ? JSON.stringify(found.references) : "";
      failure.textContent = "";
    } catch (error) { failure.textContent = error.message; }
  }

  async function check() {
    failure.textContent = "";
    try {
      const found = await ask("POST", own("schemas", name.input.value.trim(), "check"), { body: sent(), signal });
      result.replaceChildren(...verdict(found, text.input.value, type.input.value));
      register.disabled = !found.is_compatible || !may("schema-admin", name.input.value.trim());
    } catch (error) {
      result.replaceChildren();
      failure.textContent = error.message;
    }
  }

  async function send() {
    failure.textContent = "";
    try {
      const made = await ask("POST", path("subjects", name.input.value.trim(), "versions"), { body: sent() });
      notice(`Registered ${name.input.value.trim()} version ${made.version}, id ${made.id}.`);
      register.disabled = true;
    } catch (error) { failure.textContent = error.message; }
  }
  if (isFixed) await load();
}

function verdict(found, text, type) {
  const breaking = found.touched.filter((one) => one.would_break);
  const shown = lines(text, type);
  const inOrder = [...found.differences].sort((a, b) => b.version - a.version);
  const newest = inOrder[0];
  const older = inOrder.slice(1);
  const head = found.is_compatible
    ? h("p", { class: "verdict good-text" }, `It could be registered now (level ${found.level}).`)
    : h("p", { class: "verdict bad-text" }, `It would be refused: it does not go with ${inOrder.map((one) => `version ${one.version}`).join(", ")} (level ${found.level}).`);
  return [
    head,
    h("p", { class: breaking.length ? "bad-text" : "quiet" }, found.touched.length
      ? `Of ${found.touched.length} attached now, ${breaking.length ? `${breaking.length} would break.` : "nobody is known to break."}`
      : "Nobody is attached to the channel of this name now."),
    found.touched.length ? members(found.touched) : null,
    newest && h("h3", {}, `Your text: what of it readers and writers of version ${newest.version} cannot take`),
    newest && textView("The schema with what stands in the way", shown, { notes: place(newest.differences, shown, type, text) }),
    ...older.flatMap((one) => [h("h3", {}, `Version ${one.version}`), ...one.differences.map(differenceNote)]),
  ].filter(Boolean);
}

function members(touched) {
  return h("table", { class: "free", "aria-label": "Attached now" }, h("thead", {}, h("tr", {}, ["Member", "Role", "Process", "With it"].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, touched.map((one) => h("tr", {}, h("td", {}, one.member_id), h("td", {}, one.role), h("td", {}, `${one.pid ?? "–"} on ${one.host ?? "–"}`),
      h("td", {}, one.would_break === null ? badge("not known") : one.would_break ? badge("breaks", "bad") : badge("goes on", "good"))))));
}
