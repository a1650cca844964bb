"""A consumer and its registry: where the channel is, whether it can be read, and that this consumer reads it.

Rule 1: nobody is asked again and again: the kernel tells of this host's directory, the broker's events of the rest.
Rule 2: once the consumer is made, whoever reads never waits for a broker: the background asks, and its answer wakes
the reader.
Rule 3: a consumer that was evicted reads nothing more, whatever is there, and no producer waits for it. Values that it
has keep their memory.
Rule 4: data of another host is an error that names the host. A block of the same name on this host is not that data.
"""

import copy
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

from messagehub.channels.consumer.attachments import Attachments
from messagehub.channels.consumer.background_requests import BackgroundRequest, RunLater
from messagehub.channels.consumer.consumer_options import ConsumerOptions
from messagehub.channels.consumer.consumer_share import ConsumerShare, Renew
from messagehub.channels.consumer.elsewhere import Elsewhere
from messagehub.channels.consumer.expected_schema import ExpectedSchema
from messagehub.client.registration import Registration
from messagehub.discovery import Discovery, Source
from messagehub.errors import BrokerRequired, BrokerTimeout, ChannelNotFound, HubError, is_unable
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.entries import block_path
from messagehub.shm.errors import BlockOnOtherHost
from registry import replies

log = logging.getLogger("messagehub")

ASK_SECONDS = 1.0  # so long the broker may take to say where a channel is, and what of it can be read
GATEWAY_SECONDS = 3.0
AGAIN_SECONDS = 0.1


class Undecided(Exception):
    """Nobody has said yet whether this can be read."""


class RegistryCalls(NamedTuple):
    """The calls by which a consumer reaches the registry. The first three take a timeout in seconds.

    `discover` also gives why the broker did not answer; then what it found is on this host.
    `can_read` says whether a reader of the expected schema can read what was written with the schema of this hash.
    """

    discover: Callable[[float], tuple[Discovery | None, HubError | None]]
    register: Callable[[float], Registration]
    can_read: Callable[[str, float], bool]
    renew: Renew
    run_later: RunLater
    is_in_site: Callable[[], bool]


class Enrolment:
    def __init__(
        self,
        options: ConsumerOptions,
        directory: Directory,
        attached: Attachments,
        expected: ExpectedSchema,
        share: ConsumerShare,
        registry: RegistryCalls,
        elsewhere: Elsewhere,
        *,
        made_by: float,
        timeout: float,
        wake: Callable[[], None],
    ) -> None:
        """`made_by` (`time.monotonic()`) bounds what is asked until `made` is called, `timeout` what is asked later.

        `wake` is called, on another thread, when something that was asked is answered.
        """
        self.registration: Registration | None = None
        self.source: Source | None = None
        self.has_news = False  # something was answered
        self.told: list[str] = []  # the rings that others know of, until they are looked at
        self._options = options
        self._directory = directory
        self._attached = attached
        self._expected = expected
        self._share = share
        self._registry = registry
        self._elsewhere = elsewhere
        self._made_by: float | None = made_by
        self._timeout = timeout
        self._wake = wake
        self._where: BackgroundRequest[Discovery | None] = BackgroundRequest(None)
        self._registering: BackgroundRequest[None] = BackgroundRequest(None)
        self._readable: BackgroundRequest[bool] = BackgroundRequest(otherwise=False)
        self._refusal: HubError | None = None
        self._is_unsure = True  # where the channel is: ask
        self._asks_in_passing = False  # where it is was known before, and what is read meanwhile is right
        self._is_closed = False
        self._is_attached = False  # what was answered last
        self._not_known: HubError | None = None  # why it was not known what other hosts have, when that was attached
        self._changes = 0
        self._changing = threading.Condition()

    def made(self) -> None:
        """Take note that from now on nobody waits for an answer."""
        self._made_by = None

    def doubt(self) -> None:
        """Have the next look ask where the channel is: it may be elsewhere by now. Any thread may call this."""
        self._is_unsure = True

    def refuse(self, error: HubError) -> None:
        """Have every look raise this until whoever is asked says otherwise."""
        self._refusal = copy.copy(error)  # without the frames that it was raised in

    @property
    def is_refused(self) -> bool:
        """Whether every look raises, also while the next answer takes its time."""
        return self._refusal is not None

    def is_asking(self) -> bool:
        """Whether an answer about the channel's place is awaited, or not yet taken."""
        return self._where.is_asked

    def is_awaited(self) -> bool:
        """Whether it is not yet known that the channel is not elsewhere."""
        return self._where.is_asked and not self._where.is_answered and not self._asks_in_passing

    def why_unknown(self) -> HubError | None:
        """Return why it is not known what other hosts have, as of what can be attached now."""
        return self._not_known if self._where.is_asked else self._elsewhere.why_unknown()

    def attached(self, not_known: HubError | None) -> None:
        """Take note that all is attached that was there when `why_unknown` returned this."""
        self._not_known = not_known
        if not self._is_attached:
            self._is_attached = True
            self._has_changed()

    @property
    def changes(self) -> int:
        """A number that is another one whenever what was asked is answered, or attached."""
        return self._changes

    def await_change(self, since: int, deadline: float) -> bool:
        """Wait until `changes` is another number; return False if nothing is expected, or it takes longer. Any thread
        may call this."""
        if self._refusal is not None or self._is_settled(since) or time.monotonic() >= deadline:
            return False
        with self._changing:
            return self._changing.wait_for(lambda: self._changes != since, deadline - time.monotonic())

    def check_known(self, since: int) -> None:
        """Raise why it was not known whether there is something of the channel, by whoever has looked when `changes`
        was `since`. Any thread may call this."""
        unknown = self._refusal or self._not_known or self._elsewhere.why_unknown()
        if unknown is not None:
            raise copy.copy(unknown)
        if not self._is_settled(since):
            raise BrokerTimeout(f"the hub does not say in time where channel {self._options.channel!r} is")

    def _is_settled(self, since: int) -> bool:
        """Whether all that is to be asked was answered and attached by then. What is asked in passing changes nothing:
        what was known before holds."""
        is_asked = self._where.is_asked and not self._asks_in_passing
        is_asked |= self._readable.is_asked and not self._readable.is_answered
        is_unsure = is_asked or not self._is_attached or (self._is_unsure and self.must_ask())
        return not is_unsure and self._changes == since

    def must_ask(self) -> bool:
        """Nobody is asked while something is read, unless what came may be on another host of the site: the kernel
        tells of this host alone. And a member of a group gets its share first: the others wait for it."""
        if not (self._is_unsure or self._elsewhere.is_behind):
            return False
        if self.registration is None:
            return True
        return not self._share.is_open() and (not self._attached.readers or self._registry.is_in_site())

    def must_ask_elsewhere(self) -> bool:
        """As `must_ask`, for who reads without a pause: what is on other hosts would never be read."""
        return self.must_ask() and self._registry.is_in_site() and not self._where.is_asked

    def ask_at(self) -> float | None:
        """Return when to ask again for what cannot be reached now."""
        return self._elsewhere.missing.again_at

    def catch_up(self) -> None:
        """While the consumer is made: open what it was just dealt on other hosts."""
        if self._made_by is not None and self._elsewhere.is_behind:
            self._take_place(self._find())

    def update(self) -> None:
        """Take what was answered, and ask what is unsure. A refusal is raised until whoever is asked says otherwise."""
        if self.registration is not None and self.registration.is_evicted:
            self.has_news = True  # so that no reader takes a shorter way
            self.registration.check_open()
        self.has_news = False
        try:
            self._take_answers()
        except HubError as refused:
            self.refuse(refused)
            raise
        if self.must_ask() and not self._where.is_asked:
            self._asks_in_passing, self._is_unsure = not self._is_unsure, False
            if self._made_by is not None:
                self._take_place(self._find())
            else:
                self._where.ask(self._find, self._registry.run_later, self._on_answer)
        if self._refusal is not None:
            raise copy.copy(self._refusal)

    def ask_again(self, written: str) -> bool:
        """Whether the registry, asked once more, calls another schema readable; Undecided until it has answered.

        `written` is the schema's hash. A channel that has ended is not registered, but its ring is still there, and
        was perhaps written with a schema that can be read.
        """
        if self._made_by is not None:
            return self._asks_again() or self._asks_about(written)
        if self._readable.is_answered:
            return self._readable.take()
        if not self._registering.is_asked:
            if self.registration is None or self.registration.ack is None:
                return False
            self._readable.ask(self._asks_again, self._registry.run_later, self._on_answer)
        raise Undecided

    def close(self) -> None:
        self._is_closed = True
        if self.registration is not None:
            self.registration.close()

    # -- where it is ---------------------------------------------------------------------------------------

    def _take_answers(self) -> None:
        if self._where.is_answered or self._registering.is_answered:
            self._refusal = None
        if self._registering.is_answered:
            self._registering.take()
        if self._where.is_answered:
            self._is_attached = False  # before it is taken: until then it counts as asked
            self._take_place(self._where.take())

    def _find(self) -> Discovery | None:
        """Ask who knows the channel; refuse what is elsewhere, or cannot be read."""
        try:
            found, unknown = self._registry.discover(self._seconds(ASK_SECONDS))
            if found is not None:
                self._check_schema(found)
            self._prepare(found, unknown)
        except BaseException:
            self._is_unsure = True  # and asked again, so that the next read says the same
            raise
        return found

    def _prepare(self, found: Discovery | None, unknown: HubError | None) -> None:
        """Open what is on other hosts. While the consumer is made, wait a moment for a gateway that starts again."""
        until = time.monotonic() + min(GATEWAY_SECONDS, self._seconds(0.0) / 2)
        while True:
            try:
                return self._elsewhere.prepare(found, is_made=self._made_by is None, unknown=unknown)
            except BlockOnOtherHost as error:
                if error.state not in ("", "starting") or time.monotonic() >= until or not self._registry.is_in_site():
                    raise
            time.sleep(AGAIN_SECONDS)

    def _take_place(self, found: Discovery | None) -> None:
        if found is None:
            if self.registration is None and self._attached.is_left_to_group():
                self._enrol("broker")
            return
        here = self._elsewhere.is_here
        blocks = (block for block in found.blocks if block.format != "manifest" and here(block.host))
        self.told = [block_path(self._directory, block.shm_name) for block in blocks]
        if self.registration is not None:
            return
        self._enrol(found.source)

    def _check_schema(self, found: Discovery) -> None:
        """Require equal hashes where no registry compared the schemas. A channel that nobody produces has none."""
        is_readable = found.schema_hash is None or self._expected.is_readable(found.schema_hash)
        if found.source != "broker" and not is_readable:
            raise self._expected.mismatch(found.schema_hash)

    # -- that it is read -----------------------------------------------------------------------------------

    def _enrol(self, source: Source) -> None:
        if self._made_by is not None:
            self._register(source)
        else:
            self._registering.ask(lambda: self._register(source), self._registry.run_later, self._on_answer)

    def _register(self, source: Source) -> None:
        """Register, with the broker or in the directory."""
        try:
            registration = self._registry.register(self._seconds(self._timeout))
            registration.on_ended = _waker(self)
            self.registration = registration
            if self._is_closed:  # meanwhile
                registration.close()
                return
            if self._options.group is not None:
                self._share.begin(registration)
        except ChannelNotFound:
            pass  # the broker has not seen yet what the directory shows: asked again with the next look
        except HubError as error:
            if self._options.group is None or not is_unable(error):
                self._is_unsure = True  # and asked again, so that the next read says the same
                raise
            if self._made_by is None:
                return  # it was there when this consumer was made: as with the channel itself, wait for it
            raise BrokerRequired(
                f"group {self._options.group!r} is shared out by the broker, and none answers"
            ) from error
        self.source = source
        self._accept()

    def _accept(self) -> bool:
        """Read too what the registry has just called compatible; returns whether that is new."""
        ack = None if self.registration is None else self.registration.ack
        if not isinstance(ack, replies.ConsumerRegistered):
            return False
        return self._expected.accept(ack.schema_hash, timeout=self._seconds(ASK_SECONDS))

    def _asks_again(self) -> bool:
        """Ask, and wait for the answer. A refusal is raised."""
        if self.registration is None or self.registration.ack is None:
            return False
        answers: queue.SimpleQueue[HubError | None] = queue.SimpleQueue()
        self._registry.renew(self.registration, answers.put)
        try:
            error = answers.get(timeout=min(ASK_SECONDS, self._seconds(ASK_SECONDS)))
        except queue.Empty:
            return False
        if error is None:
            return self._accept()
        if not is_unable(error) and not isinstance(error, ChannelNotFound):
            raise error
        log.debug("nobody says what else of %r can be read: %s", self._options.channel, error)
        return False

    def _asks_about(self, written: str) -> bool:
        """Ask about one schema, whatever the channel has now. Who cannot be asked has not said that it can be read."""
        try:
            if not self._registry.can_read(written, min(ASK_SECONDS, self._seconds(ASK_SECONDS))):
                return False
            return self._expected.accept(written, timeout=self._seconds(ASK_SECONDS))
        except HubError as error:
            log.debug("nobody says whether schema %s of %r can be read: %s", written, self._options.channel, error)
            return False

    # -- inside --------------------------------------------------------------------------------------------

    def _seconds(self, most: float) -> float:
        """How long what is asked now may take."""
        return most if self._made_by is None else max(self._made_by - time.monotonic(), 0.0)

    def _on_answer(self) -> None:
        """On another thread."""
        self.has_news = True
        self._has_changed()
        self._wake()

    def _has_changed(self) -> None:
        with self._changing:
            self._changes += 1
            self._changing.notify_all()

    def _on_ended(self) -> None:
        """Take note that the registration has ended. Another thread calls this."""
        self.doubt()
        if self.registration is not None and self.registration.is_evicted:
            self.has_news = True
            self._attached.end_waiting()
        self._wake()


def _waker(enrolment: Enrolment) -> Callable[[], None]:
    """Wakes it if it still exists: whoever forgets a consumer has it collected at once."""
    referred = weakref.ref(enrolment)

    def wake() -> None:
        found = referred()
        if found is not None:
            found._on_ended()

    return wake
