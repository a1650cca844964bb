"""What each counter and gauge of the broker and of the HTTP process means: the HELP texts of /metrics."""

GAUGES = {
    "local_connections": "Connections to the local socket that are open now.",
    "dead_letters": "Messages to services that could not be delivered, which the broker has.",
    "lease_owners": "Peers of a shared hub that hold registrations.",
    "messages_behind": "Messages of retained topics that are not acknowledged, over all durable names.",
    "most_messages_behind": "Messages that are not acknowledged under the durable name that is furthest behind.",
    "retained_topics": "Topics whose messages the broker stores.",
    "services": "Addresses that are served.",
    "site_commands_waiting": "Commands of clients of this hub that wait for the hub that leads the site.",
    "site_copy_age_ms": "Milliseconds since etcd confirmed that this hub's copy of the site's registry is complete.",
    "site_hosts": "Hosts that are members of the site of this hub.",
    "site_hosts_lost": "Hosts of the site of which nothing was heard for the term of their lease.",
    "site_is_leader": "1 while this hub decides the commands of its site.",
    "subjects": "Subjects of the schema registry that have a version.",
    "subscriptions": "Subscriptions to events, by clients that watch the registry or a channel.",
    "tables": "Channels that have a committed table.",
    "watched_directories": "Directories of channels in shared memory that the broker watches for changes.",
    "watched_processes": "Processes of this host whose end the broker is told of.",
    "workers": "Workers of all services.",
}
COUNTERS = {
    "audit_lost": "Lines of the audit log that could not be written.",
    "audit_skipped": "Refusals that were not written to the audit log, because one peer had too many.",
    "bad_frames": "Messages on the control socket that were dropped, because their frames are no request.",
    "denied_peers": "Connections that were turned away, because their key or user is not listed.",
    "forwarded_commands": "Commands that were sent to the hub that leads the site.",
    "held": "Answers that waited until a change was on disk. This is normal.",
    "http_audit_skipped": "Refusals of HTTP that were not written to the audit log, because one caller had too many.",
    "http_connections": "HTTP connections that were turned away, because too many were open.",
    "http_event_streams": "Event streams that were refused, because too many were open.",
    "http_forbidden": "HTTP requests that were refused, because the caller lacks the right.",
    "http_large_bodies": "HTTP requests that were refused, because their body is too large.",
    "http_large_requests": "HTTP requests that were refused, because their headers, or all of them, are too large.",
    "http_malformed": "HTTP connections that sent something that is not HTTP, or too many requests at once.",
    "http_open_bodies": "HTTP requests that were refused, because too many bodies arrived at once.",
    "http_rate_limited": "HTTP requests that were refused, because their caller sends too many a second.",
    "gateway_restarts": "How often the process of the Arrow Flight gateway had to be started again.",
    "http_restarts": "How often the HTTP process had to be started again.",
    "http_slow_bodies": "HTTP requests that were ended, because their body did not arrive in time.",
    "http_slow_headers": "HTTP connections that were closed, because their headers did not arrive in time.",
    "http_slow_readers": "HTTP connections that were closed, because nobody read the answer.",
    "http_unauthorized": "HTTP requests that were refused, because they had no token or an unknown one.",
    "hung_up_locally": "Connections of the local socket that were ended, because they did not take what was sent.",
    "hung_up": "Connections to the event socket that were ended, because they said too much.",
    "internal_errors": "Requests that failed because of a defect of the broker; its log has the trace.",
    "kept": "Messages that were stored for retained topics.",
    "kept_reads": "Requests that read messages of retained topics from the store.",
    "kept_unannounced": "Stored messages that found a full queue; their subscribers read them from the store.",
    "malformed": "Messages that are no JSON, or break the form of their type.",
    "not_found": "Questions for something that is not there. That is an answer, not a refusal.",
    "published": "Events that the broker has sent to those who watch.",
    "refused_subscriptions": "Subscriptions to events that were refused, because the peer lacks the right.",
    "refused_too_many_subscriptions": "Subscriptions to events over the limit of one peer.",
    "site_loads": "How often all records were loaded from etcd: once while leading, and when following was not enough.",
    "store_failures": "Transactions that the store could not write, for example because the disk was full.",
    "threads_restarted": "How often a background thread of the hub failed and was started again.",
    "too_large": "Requests above 1 MiB.",
    "undeliverable": "Answers whose client had left, or did not read.",
    "unknown_type": "Requests of a type that the broker does not know.",
}


UNKNOWN = "Counted by a broker of another version."


def of_gauge(name: str) -> str:
    return GAUGES.get(name, UNKNOWN)


def of_counter(name: str) -> str:
    """Return the text of a counter. What was refused with a code is counted under that code."""
    if name in COUNTERS or not name.startswith("refused_"):
        return COUNTERS.get(name, UNKNOWN)
    return f"Requests that the broker refused with {name.removeprefix('refused_').upper()}."
