"""What a person sees and does in the views, against a live hub."""

import json
import re
from collections.abc import Callable

import pyarrow as pa
import pytest
import zmq
from playwright.sync_api import expect

from messagehub.errors import Evicted, ServiceNotFound
from tests.console.conftest import DESKTOP, PHONE, ConsoleHub, Looker
from tests.integration.harness import Peer, eventually

Look = Callable[..., Looker]
READING = pa.schema([("at", pa.float64()), ("celsius", pa.float64())])
MANY = 10_000
VIEWS = {
    "overview": "dl.facts",
    "map": ".map svg",
    "channels": "tbody a",
    "channels/usable.readings.now": "dl.facts",
    "channels/usable.readings.now/tail": "tbody tr:not(.spacer)",
    "schemas": "tbody a",
    "schemas/usable.readings": ".text-view",
    "schemas/usable.readings/check": "textarea",
    "schemas/usable.readings/settings": "select",
    "topics": "form",
    "topics/usable.topic": "section",
    "services": "section",
    "trace": "tbody tr:not(.spacer)",
    "trace?topic=usable.kept&offset=1": "table.free .badge",
    "audit": "tbody tr:not(.spacer)",
    "access": "dl.facts",
}
"""Each with something that is there when it is drawn."""


def batch(at: float) -> pa.RecordBatch:
    return pa.record_batch([[at], [20.0 + at]], schema=READING)


def test_a_producer_appears_in_the_table_while_it_is_watched(owner: Looker, web: ConsoleHub) -> None:
    page = owner.open("channels?q=appears")
    expect(page.get_by_role("heading", name="Channels")).to_be_visible()
    with web.connect() as hub, hub.producer("appears.now", schema=READING):
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="appears.now"))
        expect(row).to_contain_text("active")
        row.get_by_role("link").click()
        expect(page.get_by_role("heading", name="appears.now")).to_be_visible()
    expect(page.get_by_text("This channel is not there")).to_be_visible()


def test_a_schema_that_would_break_a_consumer_is_shown_with_its_counterexample(owner: Looker, web: ConsoleHub) -> None:
    old = {"type": "object", "properties": {"celsius": {"type": "number"}}}
    new = {"type": "object", "properties": {"celsius": {"type": "number", "maximum": 100}}}
    assert web.register("broken.readings", old).status_code == 200
    page = owner.open("schemas/broken.readings/check")
    expect(page.get_by_label("Schema", exact=True)).to_have_value(json.dumps(old, indent=2))
    page.get_by_label("Schema", exact=True).fill(json.dumps(new))
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("It would be refused")).to_be_visible()
    line = page.locator(".text-view li.marked")
    expect(line).to_contain_text('"maximum": 100')
    note = page.locator(".text-view li.marked + li.note")
    expect(note).to_contain_text("The old schema takes this document")
    expect(note.locator("pre")).to_contain_text('"celsius"')
    expect(page.get_by_role("button", name="Register")).to_be_disabled()
    page.get_by_label("Schema", exact=True).fill(json.dumps(old | {"description": "the same"}))
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("It could be registered now")).to_be_visible()
    page.get_by_role("button", name="Register").click()
    eventually(lambda: web.ask("GET", "/subjects/broken.readings/versions").json() == [1, 2])


def test_who_is_attached_and_would_break_by_a_schema_is_named(owner: Looker, web: ConsoleHub) -> None:
    with (
        web.connect() as hub,
        hub.producer("attached.readings", schema=READING),
        hub.consumer("attached.readings", expected_schema=READING, consumer_id="reads-celsius"),
    ):
        page = owner.open("schemas/attached.readings/check")
        expect(page.get_by_label("Type")).to_have_value("ARROW")
        page.get_by_label("Schema", exact=True).fill(json.dumps({"fields": [{"name": "celsius", "type": "utf8"}]}))
        page.get_by_role("button", name="Check").click()
        row = page.get_by_role("row").filter(has_text="reads-celsius")
        expect(row).to_contain_text("breaks")


def test_two_versions_are_compared_side_by_side(owner: Looker, web: ConsoleHub) -> None:
    web.ask("PUT", "/config/compared", {"compatibility": "NONE"})
    web.register("compared", {"type": "object", "properties": {"n": {"type": "integer"}}})
    web.register("compared", {"type": "object", "properties": {"n": {"type": "string"}}})
    page = owner.open("schemas/compared/compare")
    expect(page.get_by_text("of the changes would break readers of the new version")).to_be_visible()
    expect(page.locator(".text-view li.removed")).to_contain_text('"integer"')
    expect(page.locator(".text-view li.added")).to_contain_text('"string"')
    expect(page.locator(".text-view li.marked + li.note pre")).to_contain_text('{"n"')


def test_a_slow_consumer_is_named_in_the_overview_the_map_and_its_channel(owner: Looker, web: ConsoleHub) -> None:
    with (
        web.connect() as hub,
        hub.producer("slow.readings", schema=READING, capacity=64) as producer,
        hub.consumer("slow.readings", consumer_id="never-reads"),
    ):
        for number in range(50):
            producer.write(batch(number))
        page = owner.open("overview")
        attention = page.get_by_role("region", name="Attention")
        expect(attention.get_by_role("listitem").filter(has_text="slow.readings")).to_contain_text("never-reads")
        owner.open("map")
        expect(page.get_by_role("link", name="never-reads, 50 items")).to_be_visible()
        page.get_by_role("link", name="slow.readings, active").click()
        row = page.get_by_role("row").filter(has_text="never-reads")
        expect(row).to_contain_text("lagging")
        expect(row).to_contain_text("50")


def test_a_live_plot_follows_what_a_producer_writes(owner: Looker, web: ConsoleHub) -> None:
    with web.connect() as hub, hub.producer("plotted.readings", schema=READING) as producer:
        producer.write(batch(1.0))
        page = owner.open("channels/plotted.readings/tail")
        cells = page.get_by_role("table", name="Newest rows").get_by_role("cell")
        expect(cells.filter(has_text=re.compile(r"^21$"))).to_have_count(1)  # and no time of day in which it stands
        line = page.locator(".chart path.line")
        before = line.get_attribute("d")
        for number in range(2, 6):
            producer.write(batch(float(number)))
        expect(cells.filter(has_text=re.compile(r"^25$"))).to_have_count(1)
        expect(line).not_to_have_attribute("d", before or "")
        expect(page.locator(".legend").get_by_text("celsius")).to_contain_text("25")
        page.get_by_label("at", exact=True).check()  # a time, which is not drawn unless it is asked for
        expect(line).to_have_count(2)


def test_a_consumer_is_evicted_and_told(owner: Looker, web: ConsoleHub) -> None:
    with (
        web.connect() as hub,
        hub.producer("evicted.readings", schema=READING) as producer,
        hub.consumer("evicted.readings", consumer_id="in-the-way") as consumer,
    ):
        page = owner.open("channels/evicted.readings")
        page.get_by_role("button", name="Evict in-the-way").click()
        page.get_by_role("dialog").get_by_role("button", name="Evict").click()
        expect(page.get_by_text("Nobody reads this channel.")).to_be_visible()
        assert web.ask("GET", "/api/v1/audit?request=MEMBER_EVICT").json()[0]["member"] == "in-the-way"
        producer.write(batch(1.0))
        with pytest.raises(Evicted):
            eventually(lambda: consumer.read(timeout=0.1) and None)


def test_a_channel_is_created_and_destroyed(owner: Looker, web: ConsoleHub) -> None:
    page = owner.open("channels")
    page.get_by_role("button", name="Create channel").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("no such name!")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("breaks the rule")
    dialog.get_by_label("Name").fill("made.here")
    dialog.get_by_label("Schema (may").fill('{"fields": [{"name": "at", "type": "float64"}]}')
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="made.here")).to_be_visible()
    expect(page.get_by_text("yes, with its schema")).to_be_visible()
    page.get_by_role("button", name="Destroy").click()
    page.get_by_role("dialog").get_by_role("button", name="Destroy").click()
    eventually(lambda: web.ask("GET", "/api/v1/channels/made.here").status_code == 404)


def test_what_is_published_is_seen_live_and_a_retained_topic_is_read_again(owner: Looker, web: ConsoleHub) -> None:
    web.ask("POST", "/api/v1/topics/console.orders", {"keep": {}})
    page = owner.open("topics?pattern=console.>")
    expect(page.get_by_text("following")).to_be_visible()
    page.get_by_role("button", name="Publish").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Topic").fill("console.orders")
    dialog.get_by_label("Payload", exact=True).fill('{"id": 7}')
    dialog.get_by_role("button", name="Publish").click()
    live = page.get_by_role("table", name="What is published").get_by_role("row")
    expect(live.filter(has_text='{"id":7}')).to_have_count(1)
    page.get_by_role("link", name="console.orders").click()
    stored = page.get_by_role("table", name="Messages of console.orders").get_by_role("row")
    expect(stored.filter(has_text='{"id":7}')).to_have_count(1)


def test_a_dead_letter_is_read_and_a_worker_is_seen(owner: Looker, web: ConsoleHub) -> None:
    with web.connect() as hub, hub.serve("service:seen", lambda message, _: message.payload):
        with pytest.raises(ServiceNotFound):
            hub.send("service:nobody", {"lost": True})
        page = owner.open("services")
        expect(page.get_by_role("row").filter(has_text="service:seen")).to_contain_text("active")
        row = page.get_by_role("row").filter(has_text="service:nobody")
        row.click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text('{"lost":true}')
        dialog.get_by_role("button", name="Close").click()
        with hub.serve("service:nobody", lambda message, _: message.payload):
            page.get_by_role("button", name="to service:nobody again").click()
            expect(page.get_by_text("1 sent again")).to_be_visible()
            expect(page.get_by_role("button", name="to service:nobody again")).to_have_count(0)


def test_who_got_a_message_is_shown_for_a_plain_topic_and_for_a_retained_one(owner: Looker, web: ConsoleHub) -> None:
    with web.connect() as hub, hub.subscribe("got.>") as everything, hub.subscribe("got.plain", buffer=1) as small:
        hub.topic("got.stored", keep=10)
        for number in range(3):
            hub.publish("got.plain", number)
        eventually(lambda: small.lost == 2)  # all three have come
        for subscription, count in ((everything, 3), (small, 1)):
            for _ in range(count):
                subscription.receive(timeout=30)
        page = owner.open("topics?pattern=got.>")
        every = page.get_by_role("table", name="Subscriptions").get_by_role("row")
        expect(every.filter(has_text="got.>")).to_contain_text("everything")
        page.get_by_role("table", name="Plain topics").get_by_role("link", name="got.plain").click()
        expect(page.get_by_text("A plain topic: what is published goes to whoever subscribes")).to_be_visible()
        got = page.get_by_role("table", name="Subscribers of got.plain").get_by_role("row")
        expect(got.filter(has_text="got.>").get_by_role("cell").nth(3)).to_have_text("3")
        expect(got.filter(has_text="got.>").get_by_role("cell").nth(4)).to_have_text("0")
        expect(got.filter(has_text="got.plain").get_by_role("cell").nth(4)).to_have_text("2")
        expect(page.get_by_role("button", name="Delete")).to_have_count(0)
        page.get_by_role("button", name="Publish").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Payload", exact=True).fill("4")
        dialog.get_by_role("button", name="Publish").click()
        expect(page.get_by_text("subscriptions of it are known")).to_be_visible()
        live = page.get_by_role("table", name="What is published").get_by_role("row").filter(has_text="got.plain")
        live.first.click()
        page.get_by_role("link", name="Who gets got.plain").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        owner.open("topics/got.stored")
        expect(page.get_by_role("table", name="Subscribers of got.stored").get_by_text("got.>")).to_be_visible()
        expect(page.get_by_role("region", name="Durable names").first).to_be_visible()


def test_a_reader_that_loses_items_is_named_with_how_many_and_since_when(owner: Looker, web: ConsoleHub) -> None:
    with (
        web.connect() as hub,
        hub.producer("losing.readings", schema=READING, capacity=4) as producer,
        hub.consumer("losing.readings", consumer_id="too-slow") as consumer,
    ):
        page = owner.open("channels/losing.readings")
        row = page.get_by_role("table", name="Consumers").get_by_role("row").filter(has_text="too-slow")

        def is_losing() -> bool:
            for number in range(20):
                producer.write(batch(number))
            consumer.read(timeout=1)
            return row.get_by_text("losing").is_visible()

        eventually(is_losing)
        owner.open("overview")
        line = page.get_by_role("region", name="Attention").get_by_role("listitem").filter(has_text="losing.readings")

        def is_named() -> bool:
            is_losing()
            return line.filter(has_text="too-slow").filter(has_text="since").is_visible()

        eventually(is_named)
        expect(line).to_contain_text("loses")


def test_events_are_still_there_after_a_change_of_view(owner: Looker, web: ConsoleHub) -> None:
    page = owner.open("overview")
    expect(page.get_by_role("heading", name="Latest events")).to_be_visible()
    web.ask("POST", "/api/v1/channels/remembered.event", {})
    log = page.get_by_role("list", name="Events").get_by_role("listitem").filter(has_text="remembered.event")
    expect(log.first).to_be_visible()
    owner.open("schemas")
    expect(page.get_by_role("heading", name="Schemas")).to_be_visible()
    web.ask("DELETE", "/api/v1/channels/remembered.event")
    owner.open("overview")
    expect(log.filter(has_text="declared")).to_be_visible()
    expect(log.filter(has_text="destroyed")).to_be_visible()
    owner.open("channels/remembered.event/events")
    expect(log.filter(has_text="declared")).to_be_visible()
    expect(page.get_by_role("button", name="Destroy")).to_be_hidden()
    expect(page.get_by_role("link", name="Tail")).to_be_hidden()


def test_one_correlation_id_is_a_timeline_and_leads_to_the_audit_log(owner: Looker, web: ConsoleHub) -> None:
    web.ask("POST", "/api/v1/channels/traced.channel", {})
    page = owner.open("audit?name=traced.channel")
    row = page.get_by_role("row").filter(has_text="CHANNEL_CREATE").first
    expect(row).to_contain_text("owner")
    row.get_by_role("link").click()
    expect(page.get_by_role("region", name="Timeline of").locator(".lane").first).to_contain_text("CHANNEL_CREATE")
    expect(page.get_by_role("region", name="In the audit log")).to_contain_text("traced.channel")
    expect(page.get_by_role("region", name="Timeline of")).to_contain_text("http: CHANNEL_CREATE")
    asked = web.ask("POST", "/api/v1/topics/traced.topic/messages", {"json": 1}).headers["x-request-id"]
    owner.open(f"trace?id={asked}")
    expect(page.get_by_role("region", name="In the audit log")).to_contain_text("traced.topic")
    page.get_by_role("region", name="Timeline of").get_by_role("link", name="traced.topic").click()
    expect(page.get_by_role("heading", name="traced.topic")).to_be_visible()


def test_a_token_is_added_shown_once_and_revoked(owner: Looker, web: ConsoleHub) -> None:
    page = owner.open("access")
    page.get_by_role("button", name="Add token").click()
    page.get_by_label("Name", exact=True).fill("made-in-the-console")
    expect(page.get_by_role("region", name="Without a token or a key")).to_contain_text("observe")
    page.get_by_label("Role").select_option("produce")
    page.get_by_label("For names").fill("x.>")
    page.get_by_role("button", name="Add this right").click()
    expect(page.get_by_label("Rights")).to_have_value("observe produce:x.>")
    page.get_by_role("dialog").get_by_role("button", name="Add", exact=True).click()
    secret = page.locator(".secret")
    me = web.ask("GET", "/api/v1/me", headers={"authorization": f"Bearer {secret.inner_text()}"}).json()
    assert me["name"] == "token:made-in-the-console"
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("row").filter(has_text="made-in-the-console")).to_contain_text("produce:x.>")
    page.get_by_role("button", name="Revoke made-in-the-console").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("row").filter(has_text="made-in-the-console")).to_have_count(0)


def test_nothing_serious_keeps_anybody_from_using_a_view_and_none_is_wider_than_a_phone(
    look: Look, web: ConsoleHub
) -> None:
    web.register("usable.readings", {"type": "object", "properties": {"n": {"type": "integer"}}})
    with (
        web.connect() as hub,
        hub.producer("usable.readings.now", schema=READING) as producer,
        hub.consumer("usable.readings.now", consumer_id="reader"),
        hub.subscribe("usable.*"),
    ):
        producer.write(batch(0.0))
        hub.topic("usable.kept", keep=10).publish(1)
        found: list[str] = []
        for size, theme in ((DESKTOP, "light"), (PHONE, "dark")):
            tab = look(web.url, viewport=size, color_scheme=theme)
            page = tab.log_in(web.token)
            for view, drawn in VIEWS.items():
                tab.open(view)
                expect(page.locator(drawn).first).to_be_visible()
                found += [f"{theme} {view}: {barrier}" for barrier in tab.barriers()]
        assert found == []


def test_ten_thousand_channels_draw_only_the_rows_in_sight(look: Look, web: ConsoleHub) -> None:
    with Peer(f"ipc://{web.directory}/broker.sock", zmq.DEALER) as peer:
        for number in range(MANY):
            peer.send({"type": "CHANNEL_CREATE", "channel": f"many.c{number:05}"})
            if number % 1000 == 999:
                for _ in range(1000):
                    assert peer.receive()["type"] == "CHANNEL_CREATE_ACK"
    tab = look(web.url)
    page = tab.open("channels?q=many.")
    expect(page.get_by_text(f"{MANY:,}")).to_be_visible()
    table = page.get_by_role("table", name="Channels")
    assert int(table.get_attribute("aria-rowcount") or 0) == MANY + 1
    assert table.locator("tbody tr").count() < 80
    page.locator(".scroller").evaluate("one => { one.scrollTop = one.scrollHeight; }")
    expect(page.get_by_role("link", name=f"many.c{MANY - 1:05}")).to_be_visible()
    assert table.locator("tbody tr").count() < 80
    page.get_by_role("button", name="Channel", exact=True).click()  # the other way round
    page.locator(".scroller").evaluate("one => { one.scrollTop = 0; }")
    expect(table.locator("tbody tr:not(.spacer)").first).to_contain_text(f"many.c{MANY - 1:05}")
    page.get_by_label("Search").fill("many.c04242")
    expect(page.get_by_text("1 of")).to_be_visible()


def test_one_message_is_followed_from_the_live_tail_to_each_subscription(owner: Looker, web: ConsoleHub) -> None:
    with web.connect() as hub, hub.subscribe("went.>") as every, hub.subscribe("went.*", buffer=1) as small:
        page = owner.open("topics?pattern=went.>")
        expect(page.get_by_text("following")).to_be_visible()
        for number in range(2):
            hub.publish("went.away", {"id": number})
            every.receive(timeout=30)
        eventually(lambda: small.lost == 1)  # both have come there too
        row = page.get_by_role("table", name="What is published").get_by_role("row").filter(has_text='{"id":0}')
        row.focus()
        page.keyboard.press("Enter")
        page.get_by_role("dialog").get_by_role("link", name="Where did this message go?").click()
        became = page.get_by_role("table", name="What became of it").get_by_role("row")
        expect(became.filter(has_text="went.>").filter(has_text="its program has taken it")).to_have_count(1)
        expect(became.filter(has_text="went.*")).to_contain_text("drop_oldest")
        expect(page.get_by_role("status").filter(has_text="1 lost")).to_be_visible()
        expect(page.get_by_text("Published by")).to_be_visible()


def test_a_stored_message_is_found_by_what_it_says(owner: Looker, web: ConsoleHub) -> None:
    with web.connect() as hub:
        topic = hub.topic("found.orders", keep=10)
        topic.publish_all([{"name": "Ada"}, {"name": "Grace"}])
        with topic.subscribe(durable="billing", since=1) as billing:
            assert billing.receive(timeout=30).offset == 1
            page = owner.open("trace")
            page.get_by_label("Topic", exact=True).fill("found.orders")
            page.get_by_role("button", name="Follow").click()
            assert (
                page.get_by_label("Offset, or number").evaluate("one => one.validationMessage").startswith("Say which")
            )
            page.get_by_label("or text in a stored message").fill("grace")
            page.get_by_role("button", name="Follow").click()
            page.get_by_role("link", name="offset 2").click()
            row = page.get_by_role("table", name="What became of it").get_by_role("row").filter(has_text="billing")
            expect(row).to_contain_text("handed out")
            expect(page.get_by_text('{"name":"Grace"}')).to_be_visible()
            page.get_by_label("Offset, or number").fill("7")
            page.get_by_role("button", name="Follow").click()
            expect(page.get_by_text("has no message at offset 7")).to_be_visible()


def test_a_subscription_that_loses_messages_is_named_in_the_overview(owner: Looker, web: ConsoleHub) -> None:
    with web.connect() as hub, hub.subscribe("overview.losing", buffer=1) as small:
        for number in range(3):
            hub.publish("overview.losing", number)
        eventually(lambda: small.lost == 2)
        page = owner.open("overview")
        line = page.get_by_role("region", name="Attention").get_by_role("listitem").filter(has_text="overview.losing")
        expect(line).to_contain_text("has lost 2 messages")
