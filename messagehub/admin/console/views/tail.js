// The newest items of a channel as a table, and their numeric columns as a live plot.

import { get, own, poll } from "../api.js";
import { chart } from "../charts.js";
import { field, h, panel } from "../dom.js";
import { bytes, count, plural, time, value } from "../format.js";
import { table } from "../table.js";

/** Columns that are times would flatten all others; they can be ticked. */
const TIME = /^(at|t|ts|time|timestamp|.*_(at|time))$/i;
const ITEMS = 20, ROWS = 50, PLOTTED = 600, LISTED = 400, LINES = 6;

export async function showTail(body, channel, signal) {
  const pause = field("Pause", "checkbox");
  const choices = h("div", { class: "filters" });
  const plot = chart({ title: "Numeric columns", format: count, least: null, height: 240, xLabel: (at) => time(times.get(Math.round(at))) });
  const holder = h("div", {}, h("p", { class: "empty" }, "Nothing has been written yet."));
  const note = h("span", { class: "quiet" });
  const plotPanel = h("section", { class: "panel", "aria-label": "Live plot" }, choices, plot.element);
  plotPanel.hidden = true;
  body.append(plotPanel, panel("Newest rows", h("div", { class: "filters" }, pause.element, note), holder));

  let shape = "", list = null, rows = [], next = 0;
  const newest = new Map(); // per block, the newest sequence that is shown
  const times = new Map(); // of each plotted row, when its item was written
  const picked = new Map(); // column name -> its check box

  function reshape(columns) {
    shape = JSON.stringify(columns);
    rows = [];
    const numeric = columns.filter((column) => column.numeric).slice(0, 12);
    const first = numeric.filter((column) => !TIME.test(column.name)).slice(0, LINES);
    picked.clear();
    choices.replaceChildren(...numeric.map((column) => {
      const box = field(column.name, "checkbox", { checked: first.includes(column) || numeric.length === 1 });
      box.input.addEventListener("change", draw);
      picked.set(column.name, box.input);
      return box.element;
    }));
    plotPanel.hidden = !numeric.length;
    list = table({
      label: `Newest rows of ${channel}`, key: (row) => row.number, sort: 0, isDescending: true, most: 480,
      columns: [
        { label: "Row", value: (row) => row.number, align: "right", width: "80px" },
        { label: "Written", value: (row) => row.at, show: (row) => time(row.at, { hasMillis: true }), width: "126px" },
        { label: "Item", value: (row) => row.sequence, align: "right", isMinor: true, width: "90px" },
        { label: "Producer", value: (row) => row.producer ?? "", isMinor: true, width: "140px" },
        ...columns.map((column, at) => ({ label: column.name, value: (row) => row.cells[at], show: (row) => value(row.cells[at]), align: column.numeric ? "right" : undefined })),
      ],
    });
    holder.replaceChildren(list.element);
  }

  function take(item) {
    const seen = newest.get(item.shm_name) ?? -1;
    if (item.sequence <= seen) return;
    newest.set(item.shm_name, item.sequence);
    if (JSON.stringify(item.columns) !== shape) reshape(item.columns);
    for (const cells of item.rows) {
      next += 1;
      times.set(next, item.written_at);
      rows.push({ number: next, at: item.written_at, sequence: item.sequence, producer: item.producer_id, cells });
    }
    while (rows.length > PLOTTED) times.delete(rows.shift().number);
  }

  function draw() {
    if (!list) return;
    const columns = JSON.parse(shape);
    const drawn = columns.map((column, at) => ({ at, name: column.name })).filter(({ name }) => picked.get(name)?.checked).slice(0, LINES);
    plot.update(drawn.map(({ at, name }) => ({ name, points: rows.map((row) => [row.number, typeof row.cells[at] === "number" ? row.cells[at] : null]) })));
    list.update(rows.slice(-LISTED));
  }

  await poll(1, signal, async () => {
    if (pause.input.checked) return;
    const found = await get(own("channels", channel, "tail"), { items: ITEMS, rows: ROWS }, { signal });
    found.items.forEach(take);
    const last = found.items.at(-1);
    note.textContent = last ? `A sample: the newest ${ITEMS} items a second, ${ROWS} rows of each. The last item has ${plural(last.row_count, "row")}, ${bytes(last.size_bytes)}.` : "";
    if (found.items.length) draw();
  });
}
