"""The earlier version, found in real repositories of git, and its protos compared by buf."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.earlier_version import (
    ROOT,
    NoHistoryError,
    commit_of,
    earlier_commit,
    extract,
    newest_release,
)
from tools.wire_breaking import breaking_changes

_PROTO = Path("protos") / "tiny.proto"
_BEFORE = (
    'syntax = "proto3";\npackage tiny;\nmessage M {\n  uint32 one = 1;\n  string two = 2;\n}\n'
)


class Repository:
    """A repository with one commit for each version that is released."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet")
        (folder / "protos").mkdir()
        (folder / "buf.yaml").write_bytes((ROOT / "buf.yaml").read_bytes())

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
        command = ("git", "-C", str(self.folder), *who, *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, proto: str = _BEFORE, tag: str = "") -> str:
        (self.folder / _PROTO).write_text(proto)
        self.git("add", ".")
        self.git("commit", "--quiet", "--allow-empty", "--message", "A change")
        if tag:
            self.git("tag", tag)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.mark.parametrize(
    ("tags", "newest"),
    [
        ([], None),
        (["nightly", "v1", "1.2.3", "v1.2.3-rc1"], None),
        (["v0.9.0", "v0.10.0", "v0.2.11"], "v0.10.0"),
    ],
)
def test_the_newest_release_has_the_highest_version(tags: list[str], newest: str | None) -> None:
    assert newest_release(tags) == newest


def test_the_earlier_version_is_the_newest_release_before_this_commit(
    repository: Repository,
) -> None:
    repository.commit(tag="v0.1.0")
    released = repository.commit(tag="v0.2.0")
    repository.commit(tag="v0.3.0")
    assert earlier_commit(repository.folder) == released


@pytest.mark.parametrize("num_commits", [0, 1, 2])
def test_a_repository_without_it_says_so(repository: Repository, num_commits: int) -> None:
    for _ in range(num_commits):
        repository.commit()
    with pytest.raises(NoHistoryError, match="not in this copy of the repository"):
        earlier_commit(repository.folder)


def test_files_of_a_commit_are_those_of_then(repository: Repository, tmp_path: Path) -> None:
    before = repository.commit("before")
    repository.commit("after")
    extract(before, tmp_path / "then", "protos", root=repository.folder)
    assert (tmp_path / "then" / _PROTO).read_text() == "before"
    assert not (tmp_path / "then" / "buf.yaml").exists()
    assert commit_of("HEAD~1", repository.folder) == before


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (_BEFORE.replace("two = 2;", "two = 2;\n  bool three = 3;"), ""),
        (_BEFORE.replace("two", "renamed"), ""),
        (_BEFORE.replace("string two = 2;", "reserved 2;"), ""),
        (_BEFORE.replace("  string two = 2;\n", ""), 'field "2" with name "two"'),
        (_BEFORE.replace("string two", "uint32 two"), "changed type"),
    ],
)
def test_changes_that_two_versions_would_misread_are_found(
    repository: Repository, now: str, told: str
) -> None:
    before = repository.commit()
    repository.commit(now)
    found = breaking_changes(before, repository.folder)
    assert told in found
    assert bool(found) == bool(told)
