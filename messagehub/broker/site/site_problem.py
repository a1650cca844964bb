"""What keeps a hub from its site: shown in `status` at once, and logged if it lasts longer than a change of leaders."""

import logging
from time import monotonic

log = logging.getLogger("messagehub.site")

OLD_SECONDS = 5.0
"""A copy that nothing has confirmed for so long is shown as degraded."""


class SiteProblem:
    def __init__(self, site: str) -> None:
        self._site = site
        self._well_at = monotonic()
        self._is_logged = False

    def show(self, problem: str, problems: dict[str, str]) -> None:
        """Take what is wrong now, or an empty text, into the `problems` of the hub."""
        if not problem:
            problems.pop("site", None)
            self._well_at = monotonic()
            if self._is_logged:
                self._is_logged = False
                log.info("site %s: all is well again", self._site)
            return
        problems["site"] = f"site {self._site!r}: {problem}"
        if not self._is_logged and monotonic() - self._well_at >= OLD_SECONDS:
            self._is_logged = True
            log.warning("site %s: %s", self._site, problem)
