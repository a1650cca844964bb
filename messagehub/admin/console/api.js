// The hub's HTTP API: requests with the token, the connection's state, polling and event streams.
//
// The token stays in this tab's session storage and leaves it in a header only. Nothing is asked while the tab is
// hidden. A hub that does not answer is asked again, less and less often, and everything goes on when it is back.

const ROOT = new URL("../", document.baseURI);
const TOKEN = "messagehub-token";
const LONGEST_PAUSE = 5000;

export const connection = Object.assign(new EventTarget(), { state: "connecting", reason: "" });

function report(state, reason = "") {
  if (connection.state === state && connection.reason === reason) return;
  const was = connection.state;
  Object.assign(connection, { state, reason });
  connection.dispatchEvent(new Event("change"));
  if (state === "up" && was === "lost") connection.dispatchEvent(new Event("back"));
}

export class ApiError extends Error {
  constructor(status, answer, path) {
    super(answer?.message ?? `HTTP ${status} of ${path}`);
    Object.assign(this, { status, code: answer?.code ?? answer?.error_code, details: answer?.details ?? {} });
  }
}

export const getToken = () => sessionStorage.getItem(TOKEN) ?? "";
export function setToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

function address(path, query) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

/** api/v1/channels/NAME and the like: each part is encoded, so that names may hold slashes. */
export const path = (...parts) => parts.map(encodeURIComponent).join("/");
export const own = (...parts) => `api/v1/${path(...parts)}`;

async function send(method, where, { query, body, signal, headers, isProbe, token = getToken() } = {}) {
  const sent = { ...headers };
  if (token) sent.authorization = `Bearer ${token}`;
  if (body !== undefined) sent["content-type"] = "application/json";
  let answer;
  try {
    // Without credentials a browser shows no dialog of its own for a password when it is answered 401.
    answer = await fetch(address(where, query), {
      method, signal, headers: sent, credentials: "omit", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    report("lost", "The hub does not answer.");
    throw new ApiError(0, { message: "The hub does not answer." }, where);
  }
  if (answer.status === 503 || answer.status === 502) report("lost", "The broker does not answer.");
  else if (!isProbe) report("up");
  return answer;
}

/** Ask, and return the decoded answer; throws an ApiError for a refusal. */
export async function ask(method, where, options) {
  const token = getToken();
  const answer = await send(method, where, options);
  const text = await answer.text();
  let value = null;
  try { value = text ? JSON.parse(text) : null; } catch { /* a proxy's page, perhaps */ }
  if (!answer.ok) {
    if (answer.status === 401 && token && token === getToken() && !options?.token) connection.dispatchEvent(new Event("unauthorized"));
    throw new ApiError(answer.status, value, where);
  }
  if (options?.withNext) return { value, next: following(answer) };
  return value;
}

export const get = (where, query, options) => ask("GET", where, { query, ...options });

function following(answer) {
  const found = /<\?([^>]*)>; rel="next"/.exec(answer.headers.get("link") ?? "");
  return found ? Object.fromEntries(new URLSearchParams(found[1])) : null;
}

/** Yield the pages of a list, so that the first is shown before the last has come. */
export async function* pages(where, query, { signal, limit = 2000 } = {}) {
  let next = { ...query, limit };
  while (next) {
    const page = await ask("GET", where, { query: next, signal, withNext: true });
    yield page.value;
    next = page.next;
  }
}

export async function everything(where, query, options) {
  const found = [];
  for await (const page of pages(where, query, options)) found.push(...page);
  return found;
}

/** Resolve after so many milliseconds, or when the tab is shown again, or when the hub is back. */
function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      connection.removeEventListener("back", end);
      document.removeEventListener("visibilitychange", shown);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const shown = () => { if (!document.hidden) end(); };
    const timer = setTimeout(() => { if (!document.hidden) end(); }, milliseconds);
    connection.addEventListener("back", end);
    document.addEventListener("visibilitychange", shown);
    signal.addEventListener("abort", end);
  });
}

/** Run `act` now and every so many seconds until the signal; `onerror` is given what failed. */
export async function poll(every, signal, act, onerror = () => {}) {
  let pauseFor = every * 1000;
  while (!signal.aborted) {
    try {
      await act();
      pauseFor = every * 1000;
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof ApiError)) console.error(error);
      onerror(error);
      if (error.status === 401 || error.status === 403) return;
      pauseFor = Math.min(Math.max(pauseFor * 2, 1000), LONGEST_PAUSE);
    }
    await pause(pauseFor, signal);
  }
}

/** Ask whether the hub is ready, for as long as the page is open: also who looks at a still view sees it go and come. */
export function watchConnection() {
  const forever = new AbortController().signal;
  poll(5, forever, async () => {
    const answer = await send("GET", "readyz", { isProbe: true });
    const said = await answer.json();
    if (said.status === "unavailable") throw new ApiError(503, { message: "The broker does not answer." }, "readyz");
    if (!said.status) return report("up"); // it answers, but not to this token
    report("up", said.status !== "ready" ? said.status.replace("_", " ") : said.degraded ? "degraded" : "");
  });
  (async () => {
    for (;;) {
      await new Promise((resolve) => connection.addEventListener("change", resolve, { once: true }));
      for (let wait = 500; connection.state === "lost"; wait = Math.min(wait * 1.5, LONGEST_PAUSE)) {
        await pause(wait, forever);
        try {
          const answer = await send("GET", "readyz", { isProbe: true });
          if ((await answer.json()).status !== "unavailable") report("up");
        } catch { /* asked again */ }
      }
    }
  })();
}

/** Follow server-sent events until the signal: `onevent({id, event, data})`, and `onstate("open" | "lost")`. */
export async function follow(where, query, signal, onevent, onstate = () => {}) {
  let last = "";
  let wait = 500;
  while (!signal.aborted) {
    const once = new AbortController();
    const end = () => once.abort();
    const hide = () => { if (document.hidden) end(); };
    signal.addEventListener("abort", end);
    document.addEventListener("visibilitychange", hide);
    try {
      const headers = { accept: "text/event-stream", ...(last && { "last-event-id": last }) };
      const answer = await send("GET", where, { query, signal: once.signal, headers });
      if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => null), where);
      onstate("open");
      wait = 500;
      for await (const one of read(answer.body)) {
        if (one.id) last = one.id;
        onevent(one);
      }
    } catch (error) {
      if (error.status === 401 || error.status === 403 || error.status === 422) { onstate("refused", error); return; }
    } finally {
      signal.removeEventListener("abort", end);
      document.removeEventListener("visibilitychange", hide);
      once.abort();
    }
    if (signal.aborted) return;
    onstate("lost");
    await pause(wait, signal);
    wait = Math.min(wait * 2, LONGEST_PAUSE);
  }
}

async function* read(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const found = { id: "", event: "message", data: "" };
      for (const line of block.split("\n")) {
        const at = line.indexOf(":");
        if (at > 0) found[line.slice(0, at)] = line.slice(at + 1).trimStart();
      }
      if (found.data) yield found;
    }
  }
}
