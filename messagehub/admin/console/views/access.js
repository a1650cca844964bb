// Tokens for HTTP and keys for the broker: who has one, and what it allows.

import { ask, get, own, poll } from "../api.js";
import { button, dialog, facts, field, h, heading, notice, panel } from "../dom.js";
import { date } from "../format.js";
import { table } from "../table.js";

const RIGHTS = "ROLE or ROLE:PATTERN, with spaces between them. Roles: observe, consume, produce, schema-admin, admin.";

export async function show(main, { signal }) {
  const tokens = listOf("Tokens", "tokens", () => load());
  const keys = listOf("Keys", "keys", () => load());
  const server = h("p", { class: "quiet" });
  const everybody = h("div", {});
  main.append(heading("Access"), panel("Without a token or a key", everybody),
    panel("Tokens", h("p", { class: "quiet" }, "A token lets a program or a person use HTTP, this page included."), h("div", { class: "filters" }, button("Add token", () => add("tokens", load), { class: "primary" })), tokens.element),
    panel("Keys", h("p", { class: "quiet" }, "A key lets a client connect to a shared hub."), server, h("div", { class: "filters" }, button("Add key", () => add("keys", load), { class: "primary" })), keys.element));
  async function load() {
    const [listed, found, open] = await Promise.all(["tokens", "keys", "access"].map((what) => get(own(what), undefined, { signal })));
    everybody.replaceChildren(facts([
      ["Over HTTP, from this host, without a token", open.anonymous.join(" ") || "nothing"],
      ["The owner's token (http.token in the hub's directory)", open.owner_token ? "everything" : "is not asked for: everybody may do everything"],
      ["Programs of the hub's own user, on this host", "everything, without a token or a key"],
      ["Other hosts", open.shared ? "the keys below" : "nothing: the hub has no keys yet"],
    ]));
    tokens.update(listed);
    keys.update(found.keys);
    server.textContent = found.server_key ? `The hub's own key is ${found.server_key}` : "This hub is not shared: its own user connects without a key.";
  }
  await poll(10, signal, load);
}

function listOf(label, kind, changed) {
  return table({
    label, key: (row) => row.name, most: 360, empty: `There are no ${kind}.`,
    columns: [
      { label: "Name", value: (row) => row.name, width: "24%" },
      { label: "Rights", value: (row) => row.rights.join(" ") || "nothing" },
      ...(kind === "keys" ? [{ label: "Public key", value: (row) => row.public, isMinor: true }] : []),
      { label: "Made", value: (row) => row.created_at, show: (row) => date(row.created_at), isMinor: true, width: "178px" },
      { label: "Revoke", align: "right", width: "90px", depends: (row) => row.name, show: (row) => button("Revoke", () => revoke(kind, row.name, changed), { class: "small danger", "aria-label": `Revoke ${row.name}` }) },
    ],
  });
}

function add(kind, changed) {
  const name = field("Name", "text", { required: true });
  const rights = field("Rights", "text", { required: true, value: "observe", placeholder: "observe produce:sensors.>" });
  const role = field("Role", ["observe", "consume", "produce", "schema-admin", "admin"]);
  const names = field("For names (pattern; empty: all)", "text", { placeholder: "sensors.>" });
  const more = h("div", { class: "filters" }, role.element, names.element, button("Add this right", () => {
    const right = [role.input.value, names.input.value.trim()].filter(Boolean).join(":");
    rights.input.value = [...new Set([...rights.input.value.split(/\s+/).filter(Boolean), right])].join(" ");
  }));
  const given = field("Public key (may stay empty: a new pair is made)", "text");
  dialog(kind === "tokens" ? "Add token" : "Add key", {
    fields: kind === "tokens" ? [name, rights, more] : [name, rights, more, given], submit: "Add", text: RIGHTS,
    act: async () => {
      const body = { name: name.input.value.trim(), rights: rights.input.value.split(/\s+/).filter(Boolean) };
      if (kind === "keys" && given.input.value.trim()) body.public = given.input.value.trim();
      const made = await ask("POST", own(kind), { body });
      await changed();
      const secret = kind === "tokens" ? made.token : made.secret && JSON.stringify({ public: made.public, secret: made.secret, server_key: made.server_key });
      if (secret) dialog(`${kind === "tokens" ? "Token" : "Key"} of ${made.name}`, { submit: "Done", act: async () => {}, text: "It is shown this once. Copy it now.", fields: [h("div", { class: "secret" }, secret)] });
      else notice(`Added ${made.name}.`);
    },
  });
}

function revoke(kind, name, changed) {
  dialog(`Revoke ${name}?`, {
    submit: "Revoke", danger: true, text: "It is refused from the next request on, and its event streams end.",
    act: async () => { await ask("DELETE", own(kind, name)); notice(`Revoked ${name}.`); await changed(); },
  });
}
