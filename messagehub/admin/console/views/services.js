// Services: addresses, their workers and mailboxes; and the messages that could not be delivered.

import { ask, everything, get, own, poll } from "../api.js";
import { meter } from "../charts.js";
import { badge, button, dialog, field, h, heading, notice, panel } from "../dom.js";
import { count, date, payload, plural, time } from "../format.js";
import { may } from "../rights.js";
import { table } from "../table.js";

export async function show(main, { signal }) {
  const total = h("span", { class: "quiet" });
  main.append(heading("Services", total));
  const workers = table({
    label: "Services and workers", key: (row) => `${row.address} ${row.worker_id}`, most: 460, empty: "Nothing is served.",
    columns: [
      { label: "Address", value: (row) => row.address, width: "15%" },
      { label: "Worker", value: (row) => row.worker_id, width: "17%" },
      { label: "Status", value: (row) => row.status, show: (row) => badge(row.status), width: "84px" },
      { label: "Host", value: (row) => row.host ?? "–", isMinor: true, width: "104px" },
      { label: "Process", value: (row) => row.pid ?? "–", isMinor: true, width: "84px" },
      { label: "Mailbox", value: (row) => row.mailbox?.queued ?? null, depends: (row) => row.mailbox, width: "150px", show: (row) => mailbox(row.mailbox) },
      { label: "Busy", value: (row) => row.mailbox?.busy ?? null, depends: (row) => row.concurrency, show: (row) => (row.mailbox ? `${row.mailbox.busy} of ${row.concurrency}` : `– of ${row.concurrency}`), align: "right", isMinor: true, width: "80px" },
      { label: "Handled", value: (row) => row.mailbox?.handled ?? null, show: (row) => count(row.mailbox?.handled), align: "right", isMinor: true, width: "84px" },
      { label: "Lost", value: (row) => lost(row.mailbox), show: (row) => count(lost(row.mailbox)), align: "right", isMinor: true, width: "64px" },
      { label: "Choice", value: (row) => row.strategy.replaceAll("_", " "), isMinor: true, width: "104px" },
    ],
  });
  main.append(panel("Addresses and their workers", workers.element));
  const letters = may("admin") ? await deadLetters(main, signal) : null;
  await poll(2, signal, async () => {
    const services = await everything(own("services"), {}, { signal });
    total.textContent = plural(services.length, "address", "addresses");
    workers.update(services.flatMap((one) => (one.workers.length ? one.workers : [{ worker_id: "no worker", status: "pending", concurrency: 0 }])
      .map((worker) => ({ ...worker, address: one.address, strategy: one.strategy }))));
    await letters?.();
  });
}

const mailbox = (box) => (box ? meter(box.queued / Math.max(box.capacity, 1), `${count(box.queued)} of ${count(box.capacity)}`) : "–");
async function resend(body) {
  const said = await ask("POST", own("dead-letters", "resend"), { body });
  const [first] = said.failed ?? [];
  const rest = first ? `; ${count(said.failed.length)} could not be sent: ${first.reason}` : "";
  notice(`${count(said.sent)} sent again${rest}.`, said.sent && !first ? "good" : "bad");
}

const lost = (box) => (box ? box.dropped + box.refused + box.expired : null);

async function deadLetters(main, signal) {
  const list = table({
    label: "Dead letters", key: (row) => row.number, sort: 0, isDescending: true, most: 360, empty: "Every message was delivered.",
    onpick: (row) => dialog(`To ${row.address}`, { fields: [h("p", {}, `${row.code}: ${row.reason}`), h("p", { class: "quiet" }, `${date(row.at)}, from ${row.sender || "–"}, tried ${row.attempts} times`),
      h("pre", { class: "secret" }, payload(row.payload_base64, row.payload_kind))] }),
    columns: [
      { label: "Number", value: (row) => row.number, align: "right", isMinor: true, width: "98px" },
      { label: "At", value: (row) => row.at, show: (row) => time(row.at), width: "90px" },
      { label: "To", value: (row) => row.address, width: "16%" },
      { label: "Why", value: (row) => row.code, show: (row) => badge(row.code, "warn"), width: "190px" },
      { label: "Reason", value: (row) => row.reason, isMinor: true },
      { label: "Payload", value: (row) => (row.payload_base64 === null ? "not kept" : payload(row.payload_base64, row.payload_kind).slice(0, 200)) },
      { label: "Send", align: "right", width: "112px", depends: (row) => row.number, show: (row) => (row.payload_base64 === null ? "–" :
        button("Send again", () => resend({ numbers: [row.number] }).catch((error) => notice(error.message, "bad")), { class: "small", "aria-label": `Send letter ${row.number} to ${row.address} again` })) },
    ],
  });
  const note = h("span", { class: "quiet" });
  const send = button("Send all again", () => {
    const address = field("Only to this address (may stay empty)");
    dialog("Send dead letters again", { fields: [address], submit: "Send", text: "Oldest first. Those that are delivered are forgotten.", act: async () => {
      await resend(address.input.value.trim() ? { address: address.input.value.trim() } : {});
    } });
  });
  main.append(panel("Dead letters", h("div", { class: "filters" }, send, note), list.element));
  const site = await get(own("hosts"), {}, { signal });
  const elsewhere = site.hosts.length > 1 ? `; of senders on ${site.host}: those of other hosts are with the hubs there` : "";
  return async () => {
    const found = await get(own("dead-letters"), { limit: 1000 }, { signal });
    list.update(found.letters);
    send.disabled = !found.kept;
    note.textContent = `${count(found.kept)} are there${found.dropped ? `, ${count(found.dropped)} older ones made room for them` : ""}${elsewhere}`;
  };
}
