// What the caller may do, so that nothing is offered that would be refused. The hub checks all of it again.

import { get } from "./api.js";

const GIVING = { observe: ["observe", "consume", "produce", "schema-admin"] };
let me = { name: "anonymous", anonymous: true, rights: [] };

export async function identify() {
  me = await get("api/v1/me");
  return me;
}

export const caller = () => me;

/** Whether the caller has the role for this name; without a name, for any. */
export function may(role, name) {
  return me.rights.some((right) => {
    if (right.role === "admin") return true;
    if (!(GIVING[role] ?? [role]).includes(right.role)) return false;
    return name === undefined || matches(right.pattern, name);
  });
}

/** As the hub matches: `*` is one part between dots, a last `>` one or more. */
function matches(pattern, name) {
  const parts = pattern.split("."), names = name.split(".");
  for (const [at, part] of parts.entries()) {
    if (part === ">") return names.length > at;
    if (at >= names.length || (part !== "*" && part !== names[at])) return false;
  }
  return parts.length === names.length;
}
