"""The newest entries of the audit logs, over files that were turned over, cut off or are not there."""

from pathlib import Path

from messagehub.security import audit_reading
from messagehub.security.audit import AuditLog
from messagehub.security.audit_reading import newest_entries


def write(directory: Path, name: str, count: int, max_bytes: int) -> None:
    log = AuditLog(directory / name, max_bytes=max_bytes)
    for number in range(count):
        log.write("changed", "user:1", name=f"{name}-{number}")
    log.close()


def test_entries_are_found_across_files_that_were_turned_over(tmp_path: Path) -> None:
    write(tmp_path, "audit.log", 50, max_bytes=1000)
    assert (tmp_path / "audit.log.3").exists()
    found = newest_entries(tmp_path, 30, lambda _: True)
    assert [entry["name"] for entry in found] == [f"audit.log-{number}" for number in range(49, 19, -1)]
    assert newest_entries(tmp_path, 5, lambda entry: entry["name"] == "audit.log-40")[0]["log"] == "broker"


def test_the_logs_are_merged_by_time(tmp_path: Path) -> None:
    write(tmp_path, "audit.log", 1, max_bytes=1000)
    write(tmp_path, "audit-http.log", 1, max_bytes=1000)
    write(tmp_path, "audit-access.log", 1, max_bytes=1000)
    assert [entry["log"] for entry in newest_entries(tmp_path, 10, lambda _: True)] == ["access", "http", "broker"]
    assert newest_entries(tmp_path / "nowhere", 10, lambda _: True) == []


def test_lines_that_were_cut_off_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, "audit.log", 2, max_bytes=1000)
    with open(tmp_path / "audit.log", "ab") as file:
        file.write(b'{"at":17')
    assert [entry["name"] for entry in newest_entries(tmp_path, 10, lambda _: True)] == ["audit.log-1", "audit.log-0"]


def test_lines_longer_than_a_chunk_are_read_whole(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log", max_bytes=4 << 20)
    for number in range(3):
        log.write("changed", "user:1", name=f"{number}" * (audit_reading.MAX_READ_BYTES // 32))
    log.close()
    assert [entry["name"][0] for entry in newest_entries(tmp_path, 10, lambda _: True)] == ["2", "1", "0"]
