"""Notices: what a process hears of its channels with its next heartbeat.

Every other member of the channel is told of an event. Notices are bounded and may be lost with a reply; events are
the reliable way to hear.
"""

from registry import events
from registry.records import Channel
from registry.replies import Notice


def notice(event: events.AnyChannelEvent) -> Notice:
    return Notice(
        event=str(type(event).__struct_config__.tag),
        channel=event.channel,
        member=_actor(event),
        reason=getattr(event, "reason", None),
        revision=event.revision,
    )


def audience(event: events.AnyChannelEvent, channel: Channel) -> set[str]:
    """The leases of all members but the one that the event is about."""
    actor = _actor(event)
    told = {p.lease for p in channel.producers.values() if p.producer_id != actor}
    return told | {c.lease for c in channel.consumers.values() if c.consumer_id != actor}


def _actor(event: events.AnyChannelEvent) -> str | None:
    """The member an event is about."""
    if isinstance(event, events.ProducerRegistered):
        return event.producer.producer_id
    if isinstance(event, events.ConsumerRegistered):
        return event.consumer.consumer_id
    return getattr(event, "producer_id", None) or getattr(event, "consumer_id", None)
