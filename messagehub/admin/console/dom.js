// Elements, notices and dialogs. Text from the hub becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/** h("p", {class: "note"}, "text", node): an element; properties that begin with "on" are listeners. */
export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

export const link = (href, ...children) => h("a", { href }, ...children);
export const button = (text, onclick, properties) => h("button", { type: "button", onclick, ...properties }, text);

/** The reference of a view: href("channels", name), href("trace", {id}). */
export function href(...parts) {
  const query = typeof parts.at(-1) === "object" ? new URLSearchParams(parts.pop()).toString() : "";
  return `#/${parts.map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

const TONES = {
  active: "good", ready: "good", healthy: "good", verified: "good",
  pending: "quiet", plain: "quiet", unverified: "quiet", deleted: "quiet",
  left: "quiet", unknown: "warn", lost: "bad", stalled: "bad", conflict: "bad", lagging: "warn", draining: "warn", "read only": "warn", degraded: "warn",
};
/** A word in a colour that says whether it is good; the word says it too. */
export const badge = (text, tone) => h("span", { class: `badge ${tone ?? TONES[text] ?? "quiet"}` }, text);

/** A list of terms and what they are; entries without a value are left out. */
export function facts(entries) {
  const shown = entries.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return h("dl", { class: "facts" }, shown.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
}

export function panel(title, ...children) {
  return h("section", { class: "panel", "aria-label": title }, h("h2", {}, title), ...children);
}

/** The head of a view: its title, and what can be done there. */
export const heading = (title, ...actions) =>
  h("div", { class: "heading" }, h("h1", { tabindex: "-1" }, title), h("div", { class: "actions" }, ...actions));

let fields = 0;
/** A labelled input. `kind` is text, password, number, textarea, or a list of choices. */
export function field(label, kind = "text", properties = {}) {
  const id = `field-${++fields}`;
  let input;
  if (Array.isArray(kind)) {
    input = h("select", { id, ...properties, value: undefined }, kind.map((one) => h("option", { value: one }, one || "–")));
    if (properties.value !== undefined) input.value = properties.value;
  } else if (kind === "textarea") {
    input = h("textarea", { id, spellcheck: "false", rows: 8, ...properties });
  } else if (kind === "checkbox") {
    input = h("input", { id, type: "checkbox", ...properties });
    return { input, element: h("div", { class: "field check" }, input, h("label", { for: id }, label)) };
  } else {
    input = h("input", { id, type: kind, autocomplete: "off", ...properties });
  }
  return { input, element: h("div", { class: "field" }, h("label", { for: id }, label), input) };
}

/** Say something in a corner, which screen readers read out: a text, or a list of texts and elements. */
export function notice(text, tone = "good") {
  const shown = h("div", { class: `notice ${tone}` }, text);
  document.getElementById("notices").append(shown);
  setTimeout(() => shown.remove(), tone === "bad" ? 12000 : 5000);
}

/**
 * Open a dialog and run `act` with it when its form is sent; it stays open, with the reason, when `act` fails. Without
 * `act` it only shows something, until it is closed.
 */
export function dialog(title, { fields: inputs = [], text, submit = "OK", danger = false, act }) {
  const failure = h("p", { class: "failure", role: "alert" });
  const send = h("button", { type: "submit", class: danger ? "danger" : "primary" }, act ? submit : "Close");
  const close = () => { shown.close(); shown.remove(); };
  const form = h("form", { method: "dialog", class: "dialog-form" },
    h("h2", {}, title), text && h("p", {}, text), inputs.map((one) => one.element ?? one), failure,
    h("div", { class: "actions" }, act && button("Cancel", close), send));
  const shown = h("dialog", { "aria-label": title, onclose: () => shown.remove() }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    failure.textContent = "";
    try {
      await act?.(shown);
      close();
    } catch (error) {
      failure.textContent = error.message;
    }
    send.disabled = false;
  });
  document.body.append(shown);
  shown.showModal();
  return shown;
}
