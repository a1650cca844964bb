"""What a Spark user can get wrong, or meet, at this source; each text says what to do next.

HubError
├── BadOption               an option that is missing, unknown or has a wrong value
├── UnsupportedColumn       a type that Arrow or Spark cannot carry
├── RowsReordered           a task that is tried again has other rows than before
├── PayloadNotDecoded       a payload that is not what its registered schema says, or a value that it does not take
├── SchemaIncompatible      (registry) what would be written cannot be read as before
├── SchemaMismatch          (registry) what is there is not what the reader asked for
├── ChannelNotFound         (registry) nobody here knows the channel
├── ChannelNotReady         (registry) known, but there is nothing to read (yet)
├── GenerationGone          superseded and retired, or never there
├── BlockOnOtherHost        (datablock) its memory is elsewhere
└── DataLost                (client) overwritten before the stream read it
"""

from messagehub.errors import HubError


class BadOption(HubError):
    code = "SPARK_BAD_OPTION"


class UnsupportedColumn(HubError):
    code = "SPARK_UNSUPPORTED_COLUMN"


class RowsReordered(HubError):
    code = "SPARK_ROWS_REORDERED"


class PayloadNotDecoded(HubError):
    code = "SPARK_PAYLOAD_NOT_DECODED"


class GenerationGone(HubError):
    code = "GENERATION_GONE"
