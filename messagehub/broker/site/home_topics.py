"""The retained topics of a site whose home is this host: their messages, positions and members.

They are decided by a registry of their own, with revisions of its own, and stored in SQLite in the hub's directory: no
leader and no etcd is needed to publish and to read.

Rule 1: which topics there are is decided by the leader. What is defined in the site is defined here (`follow`), what is
not there any more is deleted; only by definitions that etcd has.
Rule 2: an answer that shows a change leaves when the database has it, as in a hub on its own.
Rule 3: when the database fails, what waits is refused as retryable, everything goes back to what was written, and only
reads are answered until it can be written again.
Rule 4: members are known here by name and lease only. Their own hubs renew the leases, and say when a member ends.
Rule 5: a topic that is defined and whose messages are gone with the directory of the hub is refused, not begun anew:
its offsets would be given twice.
"""

import logging
from collections.abc import Iterable

from messagehub import protocol
from messagehub.broker.parts import Parts
from messagehub.broker.persistence.pending_commits import HeldReply, PendingCommits
from messagehub.broker.persistence.restore import load
from messagehub.broker.request_queue import Request
from messagehub.broker.topics.retained import READ_COMMANDS
from messagehub.errors import HubError, StoreError, StoreReadOnly
from messagehub.security.private_files import write_private
from messagehub.settings import Settings
from messagehub.store import Saved
from registry import commands, events, replies
from registry.records import RetainedTopic
from registry.registry import Registry

log = logging.getLogger("messagehub.site")

PROBLEM = "retained topics"


class HomeTopics:
    def __init__(self, parts: Parts, settings: Settings, host: str) -> None:
        assert parts.home_commit is not None
        self._parts, self._settings, self._host = parts, settings, host
        self._commit = parts.home_commit
        self._retained = parts.retained
        self._unwritten = PendingCommits()
        self._is_read_only = False
        self._defined: dict[str, int] = {}
        """Topics whose definitions the database does not have yet, and the revisions of those."""
        self._lost: set[str] = set()
        """Topics whose messages are gone."""
        self._since = _since(settings)
        """The revision of the site when the database was new: what was defined before had its messages elsewhere."""
        self.must_follow = True
        """Whether the definitions have to be looked at again."""
        self.registry: Registry = self._loaded(None)

    @property
    def wake_fd(self) -> int:
        return self._commit.wake_fd

    def _loaded(self, saved: Saved | None) -> Registry:
        registry, _ = load(self._commit.store, self._settings, now=self._parts.now(), saved=saved)
        return registry

    # -- which topics there are ----------------------------------------------------------------------------

    def follow(self, defined: Iterable[RetainedTopic], revision: int) -> None:
        """Have exactly the topics that are defined in the site, at this revision, with this host as their home."""
        if self._is_read_only:
            return  # looked at again when the database can be written
        own = {topic.incarnation: topic for topic in defined if topic.home == self._host}
        here = {saved.topic.incarnation: saved.topic for saved in self.registry.topics.every()}
        happened: list[events.AnyTopicEvent] = [
            events.TopicDeleted(name=topic.name, incarnation=incarnation)
            for incarnation, topic in here.items()
            if incarnation not in own
        ]
        if self._since is None:
            self._since = revision
            try:
                write_private(self._settings.home_topics_since_path, str(revision).encode())
            except OSError as error:  # the next start decides anew
                log.warning("%s cannot be written: %s", self._settings.home_topics_since_path, error)
        self._lost = {
            topic.name for incarnation, topic in own.items() if incarnation not in here and incarnation <= self._since
        }
        for incarnation, topic in own.items():
            if topic.name not in self._lost:
                happened += self._defining(topic, here.get(incarnation))
        self.must_follow = False
        event_log, now = self.registry.log, self._parts.now()
        for event in happened:
            event_log.emit_topic(event, now)
        self._record(event_log.take())
        self._show_lost()

    def _defining(self, topic: RetainedTopic, here: RetainedTopic | None) -> list[events.AnyTopicEvent]:
        if here is not None and here.keep == topic.keep:
            return []
        record = RetainedTopic(
            name=topic.name,
            keep=topic.keep,
            incarnation=topic.incarnation,
            created_at=topic.created_at,
            home=topic.home,
            revision=topic.revision,
            next_offset=here.next_offset if here is not None else 1,
            total_bytes=here.total_bytes if here is not None else 0,
        )
        return [events.TopicRetained(name=topic.name, record=record)]

    def _show_lost(self) -> None:
        if not self._lost:
            self._parts.status.problems.pop(PROBLEM, None)
            return
        names = ", ".join(sorted(self._lost)[:5])
        self._parts.status.problems[PROBLEM] = (
            f"the messages of {len(self._lost)} retained topics ({names}) were in another directory of this host's hub:"
            " start the hub in that one, or give the topics up with `messagehub topics delete`"
        )

    def is_ready(self, name: str) -> bool:
        """Return whether a topic can be asked for: its definition has come here, and is written."""
        if name in self._lost:
            raise StoreError(
                f"the messages of topic {name!r} are gone: they were in another directory of the hub of host"
                f" {self._host!r}. Start that hub in the directory that it had, or delete the topic",
                topic=name,
                home=self._host,
            )
        return name not in self._defined and self.registry.topics.home_of(name) is not None

    # -- serving -------------------------------------------------------------------------------------------

    def serve(self, request: Request) -> None:
        """Answer a request about one topic of this host, or about all of them; raise a refusal."""
        path, command, received_at, _ = request
        if isinstance(command, READ_COMMANDS):
            self._retained.ask((path, command, received_at), command, self.registry.topics.get(command.topic))
            return
        if self._is_read_only and command.writes:
            raise StoreReadOnly(
                f"the retained topics of host {self._host!r} cannot be written (disk full or failing): reads go on, try"
                " again later"
            )
        now = self._parts.now()
        if isinstance(command, commands.PublishMessages):
            self._retained.check_room()
            now = self._retained.now()
        try:
            reply, happened = self.registry.apply(command, now=now)
        except HubError:
            raise
        except Exception:
            self.reload()  # it may hold half a change
            raise
        self._record(happened)
        if isinstance(command, commands.PublishMessages):
            self._retained.answered(command, reply, happened)
        if happened:
            waits_for = happened[-1].revision
        else:
            waits_for = self._unwritten.read_by(command, revision=self.registry.revision)
        self.reply(request, reply, waits_for=waits_for, is_change=bool(happened))

    def apply(self, command: commands.AnyCommand) -> replies.Reply:
        """Apply what changes nothing that is stored: members and their leases."""
        reply, happened = self.registry.apply(command, now=self._parts.now())
        self._record(happened)
        return reply

    def reply(self, request: Request, reply: replies.Reply, *, waits_for: int = 0, is_change: bool = False) -> None:
        """Send a reply as soon as the database has what it shows."""
        path, command, received_at, _ = request
        payload = protocol.encode_reply(reply, command.id)
        held = HeldReply(waits_for, path, command, received_at, reply, payload, is_change)
        if waits_for <= self._commit.written:
            self._leave(held)
        elif self._unwritten.is_uncertain:
            self._refuse(held, StoreReadOnly("whether the last change was stored is not known: try again later"))
        else:
            self._unwritten.hold(held)

    @property
    def newest(self) -> int:
        """What an answer that shows how far all topics are has to wait for."""
        return self.registry.revision if self._unwritten.changed else 0

    def _record(self, happened: list[events.AnyEvent]) -> None:
        if not happened:
            return
        self._unwritten.note(happened)
        for event in happened:
            if isinstance(event, events.TopicRetained):
                self._defined[event.name] = event.revision
            elif isinstance(event, events.TopicDeleted):
                self._defined.pop(event.name, None)
        self._commit.submit(happened)
        self._unwritten.newest = happened[-1].revision

    def _leave(self, held: HeldReply) -> None:
        _, path, command, received_at, reply, payload, is_change = held
        self._parts.requests.reply(path, command, received_at, reply, payload, is_change=is_change)

    def _refuse(self, held: HeldReply, refused: HubError) -> None:
        error = protocol.error_reply(refused)
        payload = protocol.encode_reply(error, held.command.id)
        self._leave(held._replace(reply=error, payload=payload, is_change=False))

    # -- every turn of the loop ----------------------------------------------------------------------------

    def maintain(self) -> float:
        """End members whose leases have run out, write, and return the seconds until there may be more to do."""
        registry, now = self.registry, self._parts.now()
        deadline = registry.next_deadline()
        if deadline is not None and deadline <= now:
            self._record(registry.expire(now=now))
            deadline = registry.next_deadline()
        registry.leases.take_ended()
        registry.subscribers.take_changed()  # the loop watches the members of this host by itself
        self._commit.write_submitted()
        return max(deadline - now, 0.0) if deadline is not None else 60.0

    def after_commit(self) -> None:
        """Hear what the database says."""
        commit = self._commit
        commit.acknowledge_wake()
        if commit.failure is None:
            self._release()
        elif not self._is_read_only:
            log.error("%s; retained topics of this host are only read", commit.failure.message)
            self._parts.metrics.count("store_failures")
            self._parts.status.problems[PROBLEM] = f"retained topics are only read: {commit.failure.message}"
            said = "the change could not be stored (disk full or failing) and was undone"
            if commit.reloaded is None:
                said = "whether the change was stored is not known, since the database does not answer: try again later"
            self._is_read_only = True
            self._release()
            for held in self._unwritten.undo():
                self._refuse(held, StoreReadOnly(said))
            self._settle()
        elif commit.is_writable_again:
            self._settle()
            commit.resume(written=self.registry.revision)
            self._is_read_only = False
            self._parts.status.problems.pop(PROBLEM, None)
            log.warning("the retained topics of this host can be written again")

    def flush(self, seconds: float) -> None:
        """Have what was given to the database written before the hub ends, and answer those who wait for it."""
        if not self._is_read_only:
            self._commit.flush(self._unwritten.newest, timeout=seconds)
            self.after_commit()

    def reload(self) -> None:
        """Go back to what is written after a defect."""
        self._commit.flush(self._unwritten.newest, timeout=1.0)
        self._release()
        self._go_back(None)

    def gauges(self) -> dict[str, int]:
        lags = self.registry.positions.lags()
        return {
            "retained_topics_here": self.registry.topics.count,
            "messages_behind": sum(lags),
            "most_messages_behind": max(lags, default=0),
        }

    def _release(self) -> None:
        written = self._commit.written
        self._defined = {name: revision for name, revision in self._defined.items() if revision > written}
        self._retained.release(written)
        self._unwritten.release(written, self._leave)

    def _settle(self) -> None:
        if self._unwritten.is_uncertain and self._commit.reloaded is not None:
            self._go_back(self._commit.reloaded)
            self._unwritten.settle()

    def _go_back(self, saved: Saved | None) -> None:
        before = self.registry
        registry, _ = load(
            self._commit.store, self._settings, now=self._parts.now(), at_least=before.revision, saved=saved
        )
        registry.take_over_unstored(before, now=self._parts.now())
        self.registry = registry
        self._unwritten.newest = registry.revision
        self._defined.clear()
        self.must_follow = True
        self._retained.reset()


def _since(settings: Settings) -> int | None:
    try:
        return int(settings.home_topics_since_path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        raise StoreError(
            f"{settings.home_topics_since_path} is damaged: remove it only with {settings.home_topics_path.name}, since"
            " it says which retained topics of the site that database must have"
        ) from None
