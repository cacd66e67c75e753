"""The commit that a manifest names: of the package's repository, unknown outside one, never of a git that
fails."""

import subprocess

import pytest

from gdro import provenance


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder that the package is taken to lie in, out of reach of any repository around it."""
    monkeypatch.setattr(provenance, "_HERE", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


def git(folder, *words):
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", "-C", str(folder), *name, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_commit_and_whether_the_package_differs_from_it(package):
    git(package, "init")
    git(package, "commit", "--allow-empty", "-m", "first")
    head = git(package, "rev-parse", "HEAD")
    assert provenance._commit() == head
    (package / "new.py").touch()
    assert provenance._commit() == head + "+changes"


def test_outside_a_repository_before_a_commit_or_without_git_it_is_unknown(package, monkeypatch):
    assert provenance._commit() == "unknown"
    git(package, "init")
    assert provenance._commit() == "unknown"  # no commit yet
    monkeypatch.setenv("PATH", "")
    assert provenance._commit() == "unknown"


def test_a_git_that_fails_is_no_missing_repository(package):
    git(package, "init")
    (package / ".git" / "config").write_text("[core]\n  repositoryformatversion = 99\n")
    with pytest.raises(RuntimeError, match=r"git cannot tell the commit of .*[Ee]xpected git repo version"):
        provenance._commit()


def test_a_git_that_fails_at_the_changes_is_said_too(package):
    git(package, "init")
    git(package, "commit", "--allow-empty", "-m", "first")
    (package / ".git" / "index").write_text("no index")
    with pytest.raises(RuntimeError, match=r"git cannot tell the commit of .*index"):
        provenance._commit()
