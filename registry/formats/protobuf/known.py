"""Files that every Protobuf tool ships, so that schemas import them without a reference.

Only the names of their types are here: they do not evolve, and a field of one is compared by name.
"""

from registry.formats.protobuf.model import Enum, Message

# Per file: messages, then enums; nested types follow their parent with a dot.
_GOOGLE_PROTOBUF = {
    "any": ("Any", ""),
    "api": ("Api Method Mixin", ""),
    "duration": ("Duration", ""),
    "empty": ("Empty", ""),
    "field_mask": ("FieldMask", ""),
    "source_context": ("SourceContext", ""),
    "struct": ("Struct Value ListValue", "NullValue"),
    "timestamp": ("Timestamp", ""),
    "type": ("Type Field Enum EnumValue Option", "Syntax Field.Kind Field.Cardinality"),
    "wrappers": (
        "DoubleValue FloatValue Int64Value UInt64Value Int32Value UInt32Value BoolValue StringValue BytesValue",
        "",
    ),
    "descriptor": (
        "FileDescriptorSet FileDescriptorProto DescriptorProto DescriptorProto.ExtensionRange"
        " DescriptorProto.ReservedRange ExtensionRangeOptions ExtensionRangeOptions.Declaration"
        " FieldDescriptorProto OneofDescriptorProto EnumDescriptorProto EnumDescriptorProto.EnumReservedRange"
        " EnumValueDescriptorProto ServiceDescriptorProto MethodDescriptorProto FileOptions MessageOptions"
        " FieldOptions FieldOptions.EditionDefault FieldOptions.FeatureSupport OneofOptions EnumOptions"
        " EnumValueOptions ServiceOptions MethodOptions UninterpretedOption UninterpretedOption.NamePart"
        " FeatureSet FeatureSetDefaults FeatureSetDefaults.FeatureSetEditionDefault SourceCodeInfo"
        " SourceCodeInfo.Location GeneratedCodeInfo GeneratedCodeInfo.Annotation",
        "Edition FieldDescriptorProto.Type FieldDescriptorProto.Label FileOptions.OptimizeMode"
        " FieldOptions.CType FieldOptions.JSType FieldOptions.OptionRetention FieldOptions.OptionTargetType"
        " MethodOptions.IdempotencyLevel ExtensionRangeOptions.VerificationState FeatureSet.FieldPresence"
        " FeatureSet.EnumType FeatureSet.RepeatedFieldEncoding FeatureSet.Utf8Validation"
        " FeatureSet.MessageEncoding FeatureSet.JsonFormat GeneratedCodeInfo.Annotation.Semantic",
    ),
}
_GOOGLE_TYPE = {
    "calendar_period": ("", "CalendarPeriod"),
    "color": ("Color", ""),
    "date": ("Date", ""),
    "datetime": ("DateTime TimeZone", ""),
    "dayofweek": ("", "DayOfWeek"),
    "decimal": ("Decimal", ""),
    "expr": ("Expr", ""),
    "fraction": ("Fraction", ""),
    "interval": ("Interval", ""),
    "latlng": ("LatLng", ""),
    "localized_text": ("LocalizedText", ""),
    "money": ("Money", ""),
    "month": ("", "Month"),
    "phone_number": ("PhoneNumber PhoneNumber.ShortCode", ""),
    "postal_address": ("PostalAddress", ""),
    "quaternion": ("Quaternion", ""),
    "timeofday": ("TimeOfDay", ""),
}
_FILES = (
    {f"google/protobuf/{name}.proto": ("google.protobuf", *types) for name, types in _GOOGLE_PROTOBUF.items()}
    | {f"google/type/{name}.proto": ("google.type", *types) for name, types in _GOOGLE_TYPE.items()}
    | {
        "confluent/meta.proto": ("confluent", "Meta", ""),
        "confluent/type/decimal.proto": ("confluent.type", "Decimal", ""),
    }
)


def known_types(path: str) -> tuple[str, dict[str, Message | Enum]] | None:
    """The package and the types, by full name, of a well-known file."""
    if path not in _FILES:
        return None
    package, messages, enums = _FILES[path]
    types: dict[str, Message | Enum] = {}
    for name in messages.split():
        types[f"{package}.{name}"] = Message(name.rpartition(".")[2], is_known=True)
    for name in enums.split():
        types[f"{package}.{name}"] = Enum(name.rpartition(".")[2])
    return package, types
