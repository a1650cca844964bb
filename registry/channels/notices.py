"""Notices: what a process hears of its channels with its next heartbeat.

Every other member of the channel is told of an event, and a process is told when it was replaced or evicted.
Notices are bounded and may be lost with a reply; events are the reliable way to hear.
"""

from registry import events
from registry.channels.leases import Member
from registry.records import Channel
from registry.replies import Notice


def notice(event: events.AnyChannelEvent) -> Notice:
    actor = _actor(event)
    return Notice(
        event=str(type(event).__struct_config__.tag),
        channel=event.channel,
        member=actor.member_id if actor else None,
        reason=getattr(event, "reason", None),
        revision=event.revision,
    )


def audience(event: events.AnyChannelEvent, channel: Channel) -> set[str]:
    """Return the leases of all members but the one that the event is about."""
    actor = _actor(event)
    members = [
        *((Member("producer", channel.name, p.producer_id), p.lease) for p in channel.producers.values()),
        *((Member("consumer", channel.name, c.consumer_id), c.lease) for c in channel.consumers.values()),
    ]
    return {lease for member, lease in members if member != actor}


def _actor(event: events.AnyChannelEvent) -> Member | None:
    """Return the member that an event is about. A producer and a consumer may have the same name."""
    match event:
        case events.ProducerRegistered():
            return Member("producer", event.channel, event.producer.producer_id)
        case events.ConsumerRegistered():
            return Member("consumer", event.channel, event.consumer.consumer_id)
        case events.ProducerUnregistered() | events.ProducerStalled() | events.ProducerRecovered():
            return Member("producer", event.channel, event.producer_id)
        case events.ConsumerUnregistered() | events.ConsumerStalled() | events.ConsumerRecovered():
            return Member("consumer", event.channel, event.consumer_id)
        case _:
            return None
