// The frame: which view is shown, who is logged in, whether the hub answers.

import { connection, get, getToken, setToken, watchConnection } from "./api.js";
import { dialog, field, h, href, notice } from "./dom.js";
import { caller, identify, may } from "./rights.js";

const VIEWS = [
  ["overview", "Overview", "observe"],
  ["map", "Map", "observe"],
  ["channels", "Channels", "observe"],
  ["schemas", "Schemas", "observe"],
  ["topics", "Topics", "observe"],
  ["services", "Services", "observe"],
  ["trace", "Trace", "observe"],
  ["audit", "Audit", "admin"],
  ["access", "Access", "admin"],
];
const main = document.getElementById("main");
const nav = document.getElementById("nav");
const login = document.getElementById("login");
let shown = new AbortController();
let isFirst = true;

function place() {
  const [where, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...parts] = where.split("/").map(decodeURIComponent);
  return { view: view || "overview", parts, query: Object.fromEntries(new URLSearchParams(query)) };
}

async function show() {
  const { view, parts, query } = place();
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  drawNav(view);
  const known = VIEWS.find(([name]) => name === view);
  main.replaceChildren();
  if (!known) {
    main.append(h("h1", {}, "There is no such view"), h("p", {}, h("a", { href: href("overview") }, "Go to the overview")));
    return;
  }
  document.title = `${[known[1], ...parts].reverse().join(" · ")} · MessageHub`;
  if (!may(known[2])) {
    main.append(h("h1", { tabindex: "-1" }, known[1]), h("p", { class: "empty" }, getToken()
      ? `Your token does not have the right "${known[2]}", which this view takes.`
      : `This view takes the right "${known[2]}". Log in with a token that has it.`));
    return;
  }
  const fail = (error) => {
    if (signal.aborted || error.name === "AbortError") return;
    if (error.status === undefined) console.error(error);
    main.append(h("p", { class: "failure", role: "alert" }, error.message));
    if (!error.status) connection.addEventListener("back", show, { once: true, signal });
  };
  try {
    const { show: open } = await import(`./views/${view}.js`);
    if (signal.aborted) return;
    open(main, { parts, query, signal }).catch(fail); // it lasts as long as the view is shown
  } catch (error) { fail(error); }
  if (!isFirst) main.querySelector("h1")?.focus({ preventScroll: true });
  isFirst = false;
}

function drawNav(view) {
  nav.replaceChildren(h("ul", {}, VIEWS.filter(([, , role]) => may(role)).map(([name, title]) =>
    h("li", {}, h("a", { href: href(name), "aria-current": name === view ? "page" : undefined }, title)))));
}

function drawConnection() {
  const state = document.getElementById("connection");
  const text = connection.state === "lost" ? `${connection.reason} Trying again…` : connection.reason || (connection.state === "up" ? "connected" : "connecting");
  state.textContent = text;
  state.className = `state ${connection.state === "lost" ? "bad" : connection.reason ? "warn" : connection.state === "up" ? "good" : ""}`;
  document.body.classList.toggle("lost", connection.state === "lost");
}

async function enter() {
  await identify();
  const me = caller();
  document.getElementById("who").textContent = me.anonymous ? "not logged in" : me.name;
  login.textContent = getToken() ? "Log out" : "Log in";
  login.hidden = false;
  await show();
}

function askForToken(text) {
  const token = field("Token", "password", { required: true, spellcheck: "false" });
  dialog("Log in", {
    fields: [token], submit: "Log in",
    text: text ?? "The token in http.token of the hub's directory may do everything. Others are made with “messagehub tokens new”, or under Access. It is kept until this tab is closed.",
    act: async () => {
      const given = token.input.value.trim();
      await get("api/v1/me", undefined, { token: given }); // refused if it is not known
      setToken(given);
      await enter();
      notice(`Logged in as ${caller().name}.`);
    },
  });
}

login.addEventListener("click", () => {
  if (!getToken()) { askForToken(); return; }
  setToken("");
  enter().catch((error) => notice(error.message, "bad"));
});
connection.addEventListener("change", drawConnection);
connection.addEventListener("unauthorized", () => {
  setToken("");
  enter().catch(() => {});
  askForToken("The token is not known to the hub any more. Log in with another one.");
});
addEventListener("hashchange", show);

async function begin() {
  watchConnection();
  const { view } = place();
  if (VIEWS.some(([name]) => name === view)) import(`./views/${view}.js`).catch(() => {}); // while the hub is asked who calls; `show` says what fails
  try {
    await enter();
  } catch (error) {
    if (error.status === 401) return; // the token was revoked meanwhile, and another one is asked for
    main.replaceChildren(h("p", { class: "empty" }, error.message));
    connection.addEventListener("back", begin, { once: true });
    return;
  }
  const hub = await get("api/v1/hub").catch(() => null);
  if (hub) document.getElementById("hub").textContent = `${hub.host} · ${hub.version}`;
}

begin();
