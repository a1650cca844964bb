"""Registrations that are shown in the directory of this host, because no broker knows of them.

This refers to no hub: the I/O thread calls it, and a hub that its user forgets is to be collected.
"""

import logging

from messagehub.client.registration import Registration
from messagehub.discovery.via_directory import ViaFiles
from messagehub.errors import HubError
from registry import commands, replies

log = logging.getLogger("messagehub")


class Listings:
    def __init__(self, files: ViaFiles, *, timeout: float) -> None:
        self._files = files
        self._timeout = timeout

    def enter(self, registration: Registration) -> None:
        """Enter a registration into the directory, since the broker is gone, unless somebody else is entered there."""
        try:
            taken = self._files.ask(registration.command, timeout=0.0)
        except HubError as error:
            log.debug("%r is known to no one until a broker comes: %s", registration, error)
        else:
            self.entered(registration, taken)

    def entered(self, registration: Registration, taken: replies.Reply) -> None:
        assert isinstance(taken, replies.ProducerRegistered | replies.ConsumerRegistered)
        registration.list_here(taken, lambda: self._leave(registration))

    def _leave(self, registration: Registration) -> None:
        try:
            self._files.ask(registration.unregistration(), timeout=self._timeout)
        except HubError as error:
            log.debug("the entry stays until it is cleaned: %s", error)

    def close(self, unconfirmed: list[Registration]) -> None:
        """Close the directory. A producer that no broker confirmed to have ended leaves an entry without an owner.

        A broker that still knows it, or hears of it late, sees there that it has ended although this process lives on.
        """
        producers = [one for one in unconfirmed if isinstance(one.command, commands.RegisterProducer)]
        for registration in producers:
            if registration.local is None:
                self.enter(registration)
        self._files.close(left={one.member[1:] for one in producers})
