"""The sources of discovery, in order: the broker, else the directory, else the derived name in shared memory.

Rule 1: a source that is not there costs nothing: the broker's absence is seen on its lock, without a timeout. One that
does not answer in a moment costs that moment, if another knows the channel.
Rule 2: a source that does not know the channel is no answer; the next one is asked.
Rule 3: a refusal is an answer. A broker that is unable to help is a source that is not there.
"""

import copy

from messagehub.discovery import Discovery
from messagehub.discovery.via_broker import ViaBroker
from messagehub.discovery.via_directory import ViaFiles
from messagehub.discovery.via_shm_name import ViaShmName
from messagehub.errors import BrokerTimeout, HubError, is_unable
from messagehub.shm.locks import open_files_limited


class Chain:
    def __init__(self, broker: ViaBroker, files: ViaFiles, shm: ViaShmName) -> None:
        self.broker = broker
        self.files = files
        self.shm = shm

    def discover(
        self, channel: str, *, timeout: float, expected_schema_hash: str | None = None
    ) -> tuple[Discovery | None, HubError | None]:
        """Return the first answer, and the error that says why the broker gave none."""

        def here() -> Discovery | None:
            return self._discover_here(channel, expected_schema_hash)

        try:
            found = self.broker.discover(
                channel, timeout=timeout, otherwise=here, expected_schema_hash=expected_schema_hash
            )
        except HubError as error:
            if not is_unable(error):
                raise
            return here(), copy.copy(error)  # without frames: they hold what the user may forget
        if found is None:
            return here(), None
        return found, None if found.source == "broker" else BrokerTimeout("the broker takes its time to answer")

    @open_files_limited()
    def _discover_here(self, channel: str, expected_schema_hash: str | None) -> Discovery | None:
        found = self.files.discover(channel, expected_schema_hash)
        return found or self.shm.discover(channel, expected_schema_hash)
