"""The parts that a report has, and which part the comparisons of a topic file belong to."""

GROUPS = {
    "discovery": ("discovery", "throughput", "flood", "registrations"),
    "rings": ("shared_memory", "python_twin", "tables"),
    "Spark": ("spark_handover", "spark_reading"),
    "registry": ("registry", "durable_writes", "start_up"),
    "console": ("web_console",),
    "several hosts": ("several_hosts", "site_load"),
    "messaging": ("publish_subscribe", "request_reply", "retained_topics", "streams"),
}


def group_of(topic: str) -> str:
    return next((group for group, topics in GROUPS.items() if topic in topics), "other")
