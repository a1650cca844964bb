// A schema as numbered lines, with what is wrong noted below the line that it is about.

import { h } from "./dom.js";

const MOST_COMPARED = 1500;

/** The lines of a text, each with the JSON pointer of what begins in it; a text that is no JSON has none. */
export function lines(text, type) {
  if (type !== "PROTOBUF") {
    try { return pretty(JSON.parse(text), "", "", ""); } catch { /* shown as it is */ }
  }
  return text.split("\n").map((line) => ({ text: line, pointer: null }));
}

function pretty(value, pointer, indent, before) {
  if (value === null || typeof value !== "object" || !Object.keys(value).length) return [{ text: `${indent}${before}${JSON.stringify(value)}`, pointer }];
  const isList = Array.isArray(value);
  const entries = Object.entries(value);
  const plain = entries.every(([, one]) => one === null || typeof one !== "object");
  const whole = JSON.stringify(value);
  if (plain && isList && whole.length < 60) return [{ text: `${indent}${before}${whole.replaceAll(",", ", ")}`, pointer }];
  const found = [{ text: `${indent}${before}${isList ? "[" : "{"}`, pointer }];
  entries.forEach(([name, one], at) => {
    const here = `${pointer}/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`;
    const inner = pretty(one, here, `${indent}  `, isList ? "" : `${JSON.stringify(name)}: `);
    if (at < entries.length - 1) inner.at(-1).text += ",";
    found.push(...inner);
  });
  found.push({ text: `${indent}${isList ? "]" : "}"}`, pointer: null });
  return found;
}

/** The number of the line that a path of a difference is about: the nearest thing around it that the text has. */
export function locate(shown, path, type, text) {
  if (type === "PROTOBUF") return inProto(shown, path);
  let pointer = type === "ARROW" ? arrowPointer(path, text) : path.replace(/^#/, "");
  for (;;) {
    const at = shown.findIndex((line) => line.pointer === pointer);
    if (at >= 0) return at;
    if (!pointer) return 0;
    pointer = pointer.slice(0, pointer.lastIndexOf("/"));
  }
}

/** Arrow's paths name columns: /position/x is the child x of the column position. */
function arrowPointer(path, text) {
  let pointer = "", fields, key = "fields";
  try { fields = JSON.parse(text).fields; } catch { return ""; }
  for (const part of path.split("/").slice(1)) {
    const name = part.replaceAll("~1", "/").replaceAll("~0", "~");
    const at = (fields ?? []).findIndex((field) => field.name === name);
    if (at < 0) break;
    pointer += `/${key}/${at}`;
    fields = fields[at].children;
    key = "children";
  }
  return pointer;
}

/** Protobuf's paths name messages and numbers of fields: /Order/3. */
function inProto(shown, path) {
  const parts = path.split("/").filter(Boolean);
  const number = /^\d+$/.test(parts.at(-1) ?? "") ? parts.pop() : null;
  const name = (parts.at(-1) ?? "").split(".").at(-1);
  const message = Math.max(shown.findIndex((line) => new RegExp(`\\b(message|enum|service)\\s+${name.replace(/\W/g, "")}\\b`).test(line.text)), 0);
  if (number === null) return message;
  const field = shown.findIndex((line, at) => at >= message && new RegExp(`=\\s*${number}\\s*[;\\[]`).test(line.text));
  return field < 0 ? message : field;
}

/** A difference in words, with the document that shows it. */
export function differenceNote(one) {
  return h("div", { class: "difference" }, one.message,
    one.counterexample && h("div", {}, h("span", { class: "quiet" }, "The old schema takes this document, the new one refuses it:"), h("pre", {}, one.counterexample)));
}

/** Draw lines; `notes` is a map from a line's number to nodes below it, `classes` from a number to its class. */
export function textView(label, shown, { notes = new Map(), classes = new Map() } = {}) {
  return h("div", { class: "text-view", tabindex: "0", role: "region", "aria-label": label }, h("ol", {}, shown.flatMap((line, at) => [
    h("li", { class: [classes.get(at), notes.has(at) && "marked"].filter(Boolean).join(" ") || undefined }, h("span", { class: "number", "aria-hidden": "true" }, String(at + 1)), h("span", { class: "line-text" }, line.text)),
    ...(notes.get(at) ?? []).map((note) => h("li", { class: "note" }, note)),
  ])));
}

/** Notes by line for differences that are about a text. */
export function place(differences, shown, type, text) {
  const notes = new Map();
  for (const one of differences) {
    const at = locate(shown, one.path, type, text);
    notes.set(at, [...(notes.get(at) ?? []), differenceNote(one)]);
  }
  return notes;
}

/** Which lines only the old and only the new text has, by their longest common subsequence. */
export function changed(old, now) {
  const [a, b] = [old, now].map((shown) => shown.map((line) => line.text.replace(/,$/, "")));
  const removed = new Map(), added = new Map();
  if (a.length > MOST_COMPARED || b.length > MOST_COMPARED) return { removed, added };
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] = a[i] === b[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { i += 1; j += 1; }
    else if (j >= b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) removed.set(i++, "removed");
    else added.set(j++, "added");
  }
  return { removed, added };
}
