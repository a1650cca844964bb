"""The OpenAPI document as a page for people: whole in itself, so that it needs neither scripts nor the internet."""

import base64
import hashlib
from html import escape
from typing import Any

import msgspec

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222; }
h2 { margin-top: 1.6em; } code, pre { font: 13px ui-monospace, monospace; }
details { border: 1px solid #ddd; border-radius: 6px; margin: 4px 0; padding: 4px 10px; }
summary { cursor: pointer; } summary b { display: inline-block; width: 5em; }
pre { background: #f6f6f6; padding: 8px; overflow-x: auto; } td, th { text-align: left; padding: 2px 14px 2px 0; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; frame-ancestors 'none'"


def page(document: dict[str, Any]) -> str:
    info = document["info"]
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(_group(path), []).append(_operation(path, method.upper(), operation))
    sections = "".join(f"<h2>{escape(name)}</h2>{''.join(group)}" for name, group in groups.items())
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        f"<style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        '<p>For programs: <a href="openapi.json">openapi.json</a>. A token goes along as <code>Authorization: Bearer'
        " TOKEN</code> or as the password of HTTP Basic. Errors are <code>{error_code, message}</code>.</p>"
        f"{sections}</body></html>"
    )


def _group(path: str) -> str:
    parts = [part for part in path.split("/") if part]
    return "/" + "/".join(parts[: 3 if path.startswith("/api/") else 1])


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    parameters = "".join(
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{one['in']}</td>"
        f"<td><code>{escape(_type(one['schema']))}</code></td></tr>"
        for one in operation["parameters"]
    )
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    answers = ", ".join(f"{code} {said['description']}" for code, said in operation["responses"].items())
    return (
        f"<details><summary><b>{method}</b> <code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
        + (f"<table><tr><th>parameter</th><th>in</th><th>type</th></tr>{parameters}</table>" if parameters else "")
        + (f"<p>Body:</p><pre>{escape(_shown(body['schema']))}</pre>" if body else "")
        + f"<p>{'Takes a token. ' if 'security' in operation else ''}Answers: {escape(answers)}.</p>"
        + "</details>"
    )


def _type(schema: dict[str, Any]) -> str:
    kinds = [str(one.get("const", one.get("type"))) for one in schema.get("anyOf", [schema])]
    return " or ".join(kinds)


def _shown(schema: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
