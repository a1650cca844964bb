"""Who knows the channel: the broker, else the directory, else the derived name in shared memory.

Rule 1: a source that is not there costs nothing: the broker's absence is seen on its lock, without a timeout.
Rule 2: a source that does not know the channel is no answer; the next one is asked.
Rule 3: a refusal is an answer.
"""

from messagehub.discovery import Discovery
from messagehub.discovery.via_broker import ViaBroker
from messagehub.discovery.via_files import ViaFiles
from messagehub.discovery.via_shm_name import ViaShmName
from messagehub.errors import BrokerUnavailable


class Chain:
    def __init__(self, broker: ViaBroker, files: ViaFiles, shm: ViaShmName) -> None:
        self.broker = broker
        self.files = files
        self.shm = shm

    def discover(
        self, channel: str, *, timeout: float, only_broker: bool = False, expected_schema_hash: str | None = None
    ) -> tuple[Discovery | None, BrokerUnavailable | None]:
        """The first answer, and why the broker gave none."""
        unavailable = None
        try:
            found = self.broker.discover(channel, timeout=timeout, expected_schema_hash=expected_schema_hash)
            if found is not None:
                return found, None
        except BrokerUnavailable as error:
            unavailable = error
        if only_broker:
            return None, unavailable
        here = self.files.discover(channel, expected_schema_hash) or self.shm.discover(channel, expected_schema_hash)
        return here, unavailable
