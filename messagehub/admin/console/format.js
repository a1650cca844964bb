// Numbers, times and payloads as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let step = 0;
  while (value >= 1024 && step < UNITS.length - 1) { value /= 1024; step += 1; }
  return `${step && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[step]}`;
}

/** 1234567 as 1.23 M; small numbers as they are. */
export function count(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) { const scaled = value / (letter === "k" ? 1e3 : size); return `${scaled.toFixed(scaled < 10 ? 2 : scaled < 100 ? 1 : 0)} ${letter}`; }
  }
  if (Number.isInteger(value)) return String(value);
  return value < 10 ? value.toFixed(value < 0.1 ? 2 : 1) : String(Math.round(value));
}

export const rate = (value, unit = "/s") => (value === null || value === undefined ? "–" : value ? `${count(value)}${unit}` : `0${unit}`);
export const byteRate = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} d`;
}

const two = (number) => String(number).padStart(2, "0");
export function time(at, { hasMillis = false } = {}) {
  if (!at) return "–";
  const day = new Date(at * 1000);
  const text = `${two(day.getHours())}:${two(day.getMinutes())}:${two(day.getSeconds())}`;
  return hasMillis ? `${text}.${String(day.getMilliseconds()).padStart(3, "0")}` : text;
}

export function date(at) {
  if (!at) return "–";
  const day = new Date(at * 1000);
  return `${day.getFullYear()}-${two(day.getMonth() + 1)}-${two(day.getDate())} ${time(at)}`;
}

export const ago = (at) => (at ? `${seconds(Math.max(Date.now() / 1000 - at, 0))} ago` : "–");
export const percent = (part) => (part === null || part === undefined ? "–" : `${Math.round(part * 100)}%`);
export const short = (text, length = 12) => (text && text.length > length ? `${text.slice(0, length)}…` : text || "–");
export const plural = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
/** What a process runs, as processes tell; the hub's own HTTP process is this console. */
export const programName = (program, unknown = "–") => (program === "messagehub.admin" ? "web console" : program ?? unknown);
export function value(one) {
  if (one === null || one === undefined) return "";
  if (typeof one === "number") return String(Number.isInteger(one) ? one : Number(one.toPrecision(8)));
  return typeof one === "object" ? JSON.stringify(one) : String(one);
}

/** The payload of a message, as text: `kind` is bytes, json, arrow_batch or arrow_table. */
export function payload(base64, kind) {
  if (base64 === null || base64 === undefined) return "";
  const raw = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  if (kind.startsWith("arrow")) return `Arrow, ${bytes(raw.length)}`;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(raw);
    return kind === "json" ? JSON.stringify(JSON.parse(text)) : text;
  } catch {
    const first = [...raw.slice(0, 32)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    return `${first}${raw.length > 32 ? " …" : ""} (${bytes(raw.length)})`;
  }
}
