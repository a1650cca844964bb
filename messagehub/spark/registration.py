"""What the registry is asked and told of a table that Spark writes.

Rule 1: whoever plans the write only asks; whoever commits it registers. So a job that fails leaves no schema version.
Rule 2: each of Spark's processes does so through its own `MessageHub.get_instance()`.
Rule 3: without a broker the newest table here stands for the registry. Whether one runs is seen on its lock, without
importing all that it takes to talk to it; a broker that comes later finds the table by itself.
"""

from messagehub.channels.table_checks import check_append, check_mode
from messagehub.client.broker_file import is_held
from messagehub.discovery.via_directory import ViaFiles
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.tables.manifests import Manifest
from messagehub.shm.tables.tables import Mode
from messagehub.spark.hubs import hub_of
from messagehub.spark.options import Options
from messagehub.spark.schema_mapping import schema_hash
from registry.commands import CheckTable


def check(options: Options, text: str, mode: Mode, *, is_users_process: bool = False) -> None:
    """Raise what the write would be refused with; nothing is registered."""
    if _has_broker(options):
        with hub_of(options, is_users_process=is_users_process) as hub:
            hub.check_table(options.channel, text, mode=mode)
        return
    check_mode(mode)
    settings = options.settings()
    files = ViaFiles(directory_of(settings), shm_prefix=settings.shm_prefix)
    if mode == "append":
        check_append(files, options.channel, text)
    command = CheckTable(channel=options.channel, schema_hash=schema_hash(text), schema=text, schema_type="ARROW")
    files.ask(command, timeout=0.0)


def register(options: Options, manifest: Manifest) -> None:
    """Tell the broker, if there is one, of a generation that was committed here."""
    if _has_broker(options):
        with hub_of(options) as hub:
            hub.register_table(options.channel, manifest)


def _has_broker(options: Options) -> bool:
    settings = options.settings()
    return not settings.is_local or is_held(settings.lock_path)
