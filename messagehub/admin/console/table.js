// A table that draws only the rows that are in sight, so that ten thousand are as quick as ten.
//
// column: {label, value(row), show(row), depends(row), align, width, isMinor}. A cell is drawn again when its value, or
// what `depends` returns, has changed, so that links keep the focus while numbers around them change.

import { h } from "./dom.js";

const ROW = 33;
const SPARE = 8;

export function table({ label, columns, key, sort = 0, isDescending = false, empty = "Nothing to show.", most = 560, onpick }) {
  let rows = [];
  let drawn = new Map();
  let order = { at: sort, isDescending };
  const body = h("tbody", {});
  // One cell each: a span over columns that are hidden on a phone would make them again, and take their room.
  const above = h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", {}));
  const below = h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", {}));
  const heads = columns.map((column, at) => head(column, at));
  const content = h("table", { "aria-label": label }, h("colgroup", {}, columns.map((column) => {
    const one = h("col", { class: column.isMinor ? "minor" : undefined });
    if (column.width) one.style.width = column.width;
    return one;
  })), h("thead", {}, h("tr", {}, heads)), body);
  const scroller = h("div", { class: "scroller", role: "region", "aria-label": label, tabindex: "0" }, content);
  scroller.style.maxHeight = `${most}px`;
  const nothing = h("p", { class: "empty", hidden: true }, empty);
  const element = h("div", { class: "table" }, scroller, nothing);

  function head(column, at) {
    const classes = [column.align, column.isMinor && "minor"].filter(Boolean).join(" ");
    if (!column.value) return h("th", { scope: "col", class: classes }, h("span", { class: "unseen" }, column.label));
    const press = h("button", { type: "button", onclick: () => {
      order = { at, isDescending: order.at === at ? !order.isDescending : column.align === "right" };
      arrange();
    } }, column.label);
    return h("th", { scope: "col", class: classes }, press);
  }

  function arrange() {
    const { value } = columns[order.at];
    const sign = order.isDescending ? -1 : 1;
    const keyed = rows.map((row) => [value(row), row]);
    keyed.sort(([a], [b]) => sign * compare(a, b));
    rows = keyed.map(([, row]) => row);
    heads.forEach((cell, at) => {
      if (at === order.at) cell.setAttribute("aria-sort", order.isDescending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    draw();
  }

  function draw() {
    const first = Math.max(Math.floor(scroller.scrollTop / ROW) - SPARE, 0);
    const seen = Math.ceil((scroller.clientHeight || most) / ROW) + 2 * SPARE;
    const last = Math.min(first + seen, rows.length);
    const wanted = [];
    const next = new Map();
    for (let at = first; at < last; at += 1) {
      const row = rows[at];
      const name = key(row);
      const line = drawn.get(name) ?? h("tr", {}, columns.map((column) => h("td", { class: [column.align, column.isMinor && "minor"].filter(Boolean).join(" ") || undefined })));
      line.setAttribute("aria-rowindex", at + 2);
      if (onpick) {
        line.tabIndex = 0;
        line.onclick = (event) => { if (!event.target.closest("a, button, input")) onpick(row); };
        line.onkeydown = (event) => { if (event.key === "Enter" && event.target === line) { event.preventDefault(); onpick(row); } };
      }
      columns.forEach((column, number) => paint(line.children[number], column, row));
      next.set(name, line);
      wanted.push(line);
    }
    drawn = next;
    above.firstChild.style.height = `${first * ROW}px`;
    below.firstChild.style.height = `${(rows.length - last) * ROW}px`;
    settle(body, [above, ...wanted, below]);
    content.setAttribute("aria-rowcount", rows.length + 1);
    scroller.hidden = !rows.length;
    nothing.hidden = rows.length > 0;
  }

  let isAsked = false;
  const redraw = () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => { isAsked = false; draw(); });
  };
  scroller.addEventListener("scroll", redraw, { passive: true });
  new ResizeObserver(redraw).observe(scroller);
  return { element, update: (found) => { rows = [...found]; arrange(); }, inSight: () => [...drawn.keys()] };
}

function paint(cell, column, row) {
  const stamp = JSON.stringify([column.value?.(row) ?? null, column.depends?.(row) ?? null]);
  if (cell.stamp === stamp) return;
  cell.stamp = stamp;
  const shown = column.show ? column.show(row) : column.value(row);
  cell.replaceChildren(...[shown ?? "–"].flat());
  if (typeof shown === "string" && shown.length > 24) cell.title = shown;
}

/** Have these children in this order, moving as few as possible, so that none loses the focus. */
function settle(parent, wanted) {
  const keep = new Set(wanted);
  for (const child of [...parent.children]) if (!keep.has(child)) child.remove();
  wanted.forEach((child, at) => { if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null); });
}

// One collator: `localeCompare` makes one for every comparison, and ten thousand names are compared ten thousand times.
const inOrder = new Intl.Collator("en", { numeric: true }).compare;
function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "string" ? inOrder(a, b) : a - b;
}
