"""Members of a group on the local socket of its hub: the kernel says who each is, and limits hold for each of them."""

import os
import stat
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.access.test_group_blocks import BOB, CAROL, GID, group_hub, person
from tests.integration.harness import Peer, eventually
from tests.integration.invariants import gauge
from tests.integration.local_peer import LocalPeer, framed, local_path

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming other users needs root"),
]


def test_the_group_may_connect_and_a_stranger_may_not(tmp_path: Path) -> None:
    def ask(link: Connection) -> None:
        with LocalPeer(server) as local:
            link.send(local.ask({"type": "PING"})["type"])

    def come(link: Connection) -> None:
        try:
            LocalPeer(server)
        except PermissionError:
            link.send("refused")

    with group_hub(tmp_path) as (_, server):
        assert stat.S_IMODE(local_path(server).stat().st_mode) == 0o660
        with person(BOB, ask, GID) as bob:
            assert bob.says() == "PONG"
        with person(CAROL, come) as carol:
            assert carol.says() == "refused"


def test_requests_of_a_user_are_limited_and_those_of_others_are_not(tmp_path: Path) -> None:
    def flood(link: Connection) -> None:
        with LocalPeer(server) as local:
            local.socket.sendall(framed(0, b'{"type":"PING"}') * 500)
            codes = [local.reply().get("code", "PONG") for _ in range(500)]
            link.send([codes.count("PONG"), codes.count("RATE_LIMITED")])
            link.recv()

    def ask(link: Connection) -> None:
        with LocalPeer(server) as local:
            link.send(local.ask({"type": "PING"})["type"])

    with group_hub(tmp_path, requests_per_second=20) as (directory, server), person(BOB, flood, GID) as bob:
        answered, refused = bob.says()
        assert answered + refused == 500
        assert refused > 300
        with person(CAROL, ask, GID) as carol:
            assert carol.says() == "PONG"
        bob.tell("end")
        assert f'"user:{BOB}"' in (directory / "audit.log").read_text()


def test_subscriptions_are_bounded_for_a_user_over_all_its_connections(tmp_path: Path) -> None:
    def watch(link: Connection) -> None:
        with LocalPeer(server) as first, LocalPeer(server) as second:
            for number in range(3):
                first.subscribe(b"channel/c%d/" % number)
                first.event()
            second.subscribe(b"channel/c3/")
            link.send(second.ask({"type": "PING"})["type"])
            link.recv()

    with (
        group_hub(tmp_path, subscriptions_per_peer=3) as (_, server),
        Peer(server.endpoint) as peer,
        person(BOB, watch, GID) as bob,
    ):
        assert bob.says() == "PONG"
        assert gauge(peer, "subscriptions") == 3
        assert peer.counter("refused_too_many_subscriptions") == 1
        bob.tell("end")
        eventually(lambda: gauge(peer, "subscriptions") == 0)


def test_who_says_too_much_about_subscriptions_is_hung_up_on(tmp_path: Path) -> None:
    def flood(link: Connection) -> None:
        with LocalPeer(server) as local:
            local.socket.sendall(framed(1, b"channel/a/") + framed(2, b"channel/a/") * 2000)
            link.send(local.is_hung_up_on())

    limits = {"subscriptions_per_peer": 50, "requests_per_second": 50}
    with (
        group_hub(tmp_path, **limits) as (_, server),
        Peer(server.endpoint) as peer,
        person(BOB, flood, GID) as bob,
    ):
        assert bob.says() is True
        assert peer.counter("hung_up") == 1
        eventually(lambda: gauge(peer, "subscriptions") == 0)


def test_a_topic_that_a_user_may_not_observe_is_not_heard(tmp_path: Path) -> None:
    def watch(link: Connection) -> None:
        with LocalPeer(server) as local:
            local.subscribe(b"channel/")
            local.subscribe(b"channel/x/")
            link.send([local.event()[0], local.ask({"type": "PING"})["type"]])

    with (
        group_hub(tmp_path, group_roles="consume:x produce:x") as (_, server),
        Peer(server.endpoint) as peer,
        person(BOB, watch, GID) as bob,
    ):
        assert bob.says() == [b"channel/x/", "PONG"]
        assert peer.counter("refused_subscriptions") == 1
