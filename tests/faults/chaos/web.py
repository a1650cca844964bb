"""HTTP as the role `admin` of a storm uses it: found anew for every request, asked with a deadline."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from messagehub.client.broker_file import running_broker
from messagehub.settings import Settings

REQUEST_SECONDS = 5.0


def ask(settings: Settings, method: str, path: str, body: Any = None) -> dict[str, Any] | None:
    """What was answered; None for what a storm explains: nobody there, cut off, too late, or a refusal that says so."""
    running = running_broker(settings)
    if running is None or running.http is None:
        return None
    headers = {
        "authorization": f"Bearer {(settings.dir / 'http.token').read_text().strip()}",
        "content-type": "application/json",
    }
    connection = http.client.HTTPConnection(urlsplit(running.http).netloc, timeout=REQUEST_SECONDS)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answered = connection.getresponse()
        content = answered.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    value: dict[str, Any] = json.loads(content)
    if answered.status >= 500 or answered.status == 429:
        assert {"error_code", "message"} <= value.keys(), f"an undocumented refusal: {content!r}"
        assert not value["message"].startswith("internal error"), f"a defect: {content!r}"
        return None
    assert answered.status == 200, f"{method} {path} gave {answered.status}: {content!r}"
    return value
