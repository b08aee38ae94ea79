"""What is read from the environment, and what never gets into a result (R22, R32, case 32)."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from jetspec_cli import environment
from jetspec_cli.serving import host as hosting
from jetspec_engine.config import ServeConfig


def test_the_cache_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/u")
    for name in ("JETSPEC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert environment.cache_dir() == Path("/home/u/.cache/jetspec")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert environment.cache_dir() == Path("/x/jetspec")
    monkeypatch.setenv("JETSPEC_CACHE", "~/models")
    assert environment.cache_dir() == Path("/home/u/models")


def test_case_32_the_stamp_holds_no_token_and_changes_nothing(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    monkeypatch.setenv("JETSPEC_API_KEY", "key_s3cret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    before = dict(os.environ)
    stamp = environment.stamp()
    assert "s3cret" not in str(stamp)
    assert stamp["cuda_visible_devices"] == "2"
    assert dict(os.environ) == before


def test_the_stamp_knows_the_machine_and_the_versions():
    stamp = environment.stamp()
    assert stamp["cores"] >= 1
    assert stamp["versions"]["httpx"]
    assert stamp["python"].count(".") == 2


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_our_checkout_and_no_other_repositorys(monkeypatch, tmp_path):
    def git(*words):
        own = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)

    installed = tmp_path / "venv" / "environment.py"
    installed.parent.mkdir()
    installed.write_text("")
    (tmp_path / "project.py").write_text("")
    monkeypatch.setattr(environment, "__file__", str(installed))
    assert environment.git_commit() is None, "no repository"
    git("init")
    git("add", "project.py")
    git("commit", "-m", "somebody's project")
    assert environment.git_commit() is None, "another's repository"
    git("add", "venv")
    git("commit", "-m", "a checkout of ours")
    commit = environment.git_commit()
    assert len(commit) == 40
    installed.write_text("changed")
    assert environment.git_commit() == f"{commit}+changes"


LIMITS = {
    "cgroup 2": ({"cpu.max": "100000 100000", "memory.max": "1048576"}, (1, 1 << 20)),
    "cgroup 1": (
        {
            "cpu/cpu.cfs_quota_us": "50000",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": "1048576",
        },
        (1, 1 << 20),
    ),
    "no limit": (
        {
            "cpu.max": "max 100000",
            "memory.max": "max",
            "cpu/cpu.cfs_quota_us": "-1",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": "9223372036854771712",
        },
        None,
    ),
    "nonsense": ({"cpu.max": "0 0", "memory.max": "\u00e9", "cpu/cpu.cfs_quota_us": "1"}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize("case", LIMITS)
def test_a_containers_limits_are_the_machine(tmp_path, case, monkeypatch):
    files, expected = LIMITS[case]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = (environment.usable_cores(tmp_path), environment.memory_bytes(tmp_path))
    assert found == (expected or (8, whole))
    limit = found[0] if found[0] < 8 else None
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert (environment.share_of_cores(tmp_path), environment.thread_limit(tmp_path)) == (limit, limit)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment.thread_limit(tmp_path) is None


@pytest.mark.parametrize(("limit", "asked", "expected"), [(2, None, 2), (2, 5, 5), (None, None, None)])
def test_a_server_has_no_more_threads_than_a_containers_share(monkeypatch, limit, asked, expected):
    monkeypatch.setattr(environment, "thread_limit", lambda: limit)
    assert hosting.within_share(ServeConfig(num_threads=asked)).num_threads == expected


def test_the_command_is_kept_without_its_key():
    words = ["/opt/bin/jetspec", "gate", "--api-key", "s3cret", "--api-key=s3cret", "--url", "u"]
    assert environment.redacted_command(words) == ["jetspec", "gate", "--api-key", "***", "--api-key=***", "--url", "u"]


def test_the_command_is_kept_without_the_user_of_a_url():
    words = ["jetspec", "gate", "--url", "http://me:s3cret@host:1/a@b", "--oracle-url=https://s3cret@h", "--out", "a@b"]
    expected = ["jetspec", "gate", "--url", "http://***@host:1/a@b", "--oracle-url=https://***@h", "--out", "a@b"]
    assert environment.redacted_command(words) == expected


def test_R32_a_tool_that_is_missing_or_fails_gives_nothing():
    assert environment.command_output("no-such-program-of-that-name") == ""
    assert environment.command_output("git", "no-such-git-command") == ""


def test_a_platform_without_cpuinfo(monkeypatch):
    def unreadable(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", unreadable)
    name, features = environment.processor()
    assert isinstance(name, str)
    assert features == frozenset()
