// The hosts of the site that the hub is a member of: how each of them is, and which of them need attention.

import { get, own, poll } from "./api.js";
import { badge, h, panel } from "./dom.js";
import { count, seconds } from "./format.js";
import { table } from "./table.js";

/** Without an answer of etcd for so long, nobody here knows who lives and who leads (`broker/site/site_problem.py`). */
const OLD_SECONDS = 5;
const isKnown = (site) => site.age_seconds < OLD_SECONDS;

/** A panel that is hidden while the hub is a member of no site. `onseen` is given each answer about a site. */
export function hostsOfSite(signal, onseen) {
  const about = h("p", { class: "quiet" });
  let site = null;
  const hosts = table({
    label: "Hosts", key: (one) => one.host, most: 320,
    columns: [
      { label: "Host", value: (one) => one.host, width: "13%" },
      { label: "Health", value: health, show: (one) => badge(health(one)), depends: () => isKnown(site) },
      { label: "Role", value: role, depends: () => isKnown(site) },
      { label: "Revision", value: (one) => one.revision, align: "right" },
      { label: "Lag", value: (one) => (isKnown(site) ? one.lag : null), show: (one) => (isKnown(site) && one.lag !== null ? count(one.lag) : "–"), align: "right" },
      { label: "Endpoint", value: (one) => one.endpoint || null, isMinor: true, width: "21%" },
      { label: "Gateway", value: (one) => one.gateway || null, isMinor: true, width: "21%" },
      { label: "Version", value: (one) => one.version || null, isMinor: true },
    ],
  });
  const shown = panel("Hosts of the site", about, hosts.element);
  shown.hidden = true;

  function health(one) { return isKnown(site) ? one.health : "unknown"; }
  function role(one) {
    if (!isKnown(site) || one.health === "left" || one.health === "lost") return null;
    return one.is_leader ? "leader" : "follower";
  }

  const alone = new AbortController(), until = AbortSignal.any([signal, alone.signal]);
  poll(2, until, async () => {
    const said = await get(own("hosts"), undefined, { signal: until });
    if (said.site === null) { alone.abort(); return; } // for as long as this hub runs
    site = said;
    about.textContent = `Site ${site.site}, seen from ${site.host}: its copy was complete ${seconds(site.age_seconds)} ago.`;
    shown.hidden = false;
    hosts.update(site.hosts);
    onseen(site);
  });
  return shown;
}

/** The hosts that are not well, each with the reason; none while it is not known who lives, which the hub reports. */
export const hostsNotWell = (site) => (site && isKnown(site) ? site.hosts.filter((one) => one.health !== "healthy") : []);
