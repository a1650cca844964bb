"""What was deleted for good stays deleted over kill -9, and no id comes back."""

import os
import signal
from pathlib import Path
from typing import Any

from tests.admin.conftest import Web
from tests.admin.test_registry_api import refused

Made = dict[str, Any]


def test_a_permanent_delete_stays_and_ids_are_not_used_again_after_kill_9(tmp_path: Path) -> None:
    directory = tmp_path / "hub"
    web = Web(directory)
    try:
        gone, newest, kept = fill(web)
    finally:
        kill(web)
    web = Web(directory)
    try:
        check(web, gone, newest, kept)
    finally:
        web.close()


def fill(web: Web) -> tuple[Made, Made, Made]:
    kept = web.register("kept", {"title": "kept"}).json()
    gone = web.register("gone", {"title": "gone"}).json()
    hidden = web.register("hidden", {"title": "hidden"}).json()
    newest = web.register("gone", {"title": "gone", "description": "again"}).json()
    assert newest["id"] > hidden["id"]
    for path in ("/subjects/gone", "/subjects/gone?permanent=true", "/subjects/hidden"):
        assert web.ask("DELETE", path).status_code == 200
    web.ask("PUT", "/config/kept", {"compatibility": "FULL"})
    web.ask("PUT", "/mode/hidden", {"mode": "READONLY"})
    web.ask("PUT", "/mode/moved", {"mode": "IMPORT"})
    for number in (30, 20):
        assert web.register("moved", {"title": str(number)}, id=1000 + number, version=number).status_code == 200
    return gone, newest, kept


def kill(web: Web) -> None:
    web.client.close()
    os.kill(web.process.pid, signal.SIGKILL)
    web.process.wait(30)
    assert web.process.stdout is not None
    web.process.stdout.close()


def check(web: Web, gone: Made, newest: Made, kept: Made) -> None:
    assert web.ask("GET", "/subjects?deleted=true").json() == ["hidden", "kept", "moved"]
    for made in (gone, newest):
        refused(web.ask("GET", f"/schemas/ids/{made['id']}"), 404, 40403)
        refused(web.ask("GET", f"/schemas/guids/{made['guid']}"), 404, 40403)
    assert web.ask("GET", "/subjects?deletedOnly=true").json() == ["hidden"]
    assert web.ask("GET", f"/schemas/ids/{kept['id']}").json()["guid"] == kept["guid"]
    assert web.ask("GET", "/config/kept").json() == {"compatibilityLevel": "FULL"}
    assert web.ask("GET", "/mode/hidden").json() == {"mode": "READONLY"}
    assert web.ask("GET", "/subjects/moved/versions").json() == [20, 30]
    assert web.ask("GET", "/subjects/moved/versions/latest").json()["id"] == 1030
    assert web.register("fresh", {"title": "fresh"}).json()["id"] == 1031
    again = web.register("gone", {"title": "gone"}).json()
    assert again["id"] > newest["id"]
    assert again["guid"] == gone["guid"]
