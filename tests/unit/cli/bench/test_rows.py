"""The row log: what survives a crash, and what is refused."""

import errno
import json

import pytest

from jetspec_cli.bench.rows import RowLog
from jetspec_engine.errors import ArtifactError, ConfigError, UnavailableError


def row(prompt_id: str = "a", **more) -> dict:
    return {"pairing": "p", "repeat": 0, "prompt_id": prompt_id, "arm": "linear", "is_ok": True, **more}


def test_rows_are_found_again(tmp_path):
    path = tmp_path / "r.ndjson"
    with RowLog(path, "f") as log:
        log.append([row("a", e2e_s=0.1), row("b")])
        # Already on the disk while the log is open.
        assert len(path.read_text().splitlines()) == 3
    with RowLog(path, "f") as log:
        assert log.num_found == 2
        assert log.get("p", 0, "a", "linear")["e2e_s"] == 0.1
        assert log.get("p", 1, "a", "linear") is None


def test_case_27_a_torn_last_line_is_cut_off_and_the_next_row_is_whole(tmp_path):
    path = tmp_path / "r.ndjson"
    with RowLog(path, "f") as log:
        log.append([row("a"), row("b")])
    path.write_bytes(path.read_bytes()[:-9])
    with RowLog(path, "f") as log:
        assert log.num_found == 1
        log.append([row("c")])
    assert [json.loads(line).get("prompt_id") for line in path.read_text().splitlines()] == [None, "a", "c"]


def test_a_torn_header_starts_anew(tmp_path):
    path = tmp_path / "r.ndjson"
    path.write_text('{"schema_ver')
    with RowLog(path, "f") as log:
        assert log.num_found == 0
    with RowLog(path, "f") as log:
        assert log.num_found == 0


def test_a_later_row_replaces_an_earlier_one_and_the_file_keeps_both(tmp_path):
    path = tmp_path / "r.ndjson"
    with RowLog(path, "f") as log:
        log.append([row(is_ok=False), row(is_ok=True)])
    with RowLog(path, "f") as log:
        assert log.num_found == 1
        assert log.get("p", 0, "a", "linear")["is_ok"]
    assert len(path.read_text().splitlines()) == 3


def test_two_runs_at_once_do_not_write_one_file(tmp_path):
    path = tmp_path / "r.ndjson"
    with RowLog(path, "f") as log:
        with pytest.raises(UnavailableError, match="another run is writing it"):
            RowLog(path, "f")
        log.append([row("a")])
    with RowLog(path, "f") as log:
        assert log.num_found == 1


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    path = tmp_path / "r.ndjson"
    with RowLog(path, "f") as log:

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: .*r\.ndjson"):
            log.append([row("a")])


def test_rows_of_another_measurement_are_refused_and_left_alone(tmp_path):
    path = tmp_path / "r.ndjson"
    with RowLog(path, "f") as log:
        log.append([row()])
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another measurement"):
        RowLog(path, "g")
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["[1]\n", "nonsense\n", '{"schema_version": 9, "kind": "rows"}\n', '{"a": 1}\n'])
def test_files_that_are_not_ours_are_refused_with_their_line(tmp_path, text):
    path = tmp_path / "r.ndjson"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=r"r\.ndjson:1: "):
        RowLog(path, "f")


def test_infinities_become_null(tmp_path):
    path = tmp_path / "r.ndjson"
    with RowLog(path, "f") as log:
        log.append([row(e2e_s=float("inf"))])
    assert json.loads(path.read_text().splitlines()[1])["e2e_s"] is None
