"""The checks themselves, where a whole process cannot be made to fail."""

from __future__ import annotations

import errno
from importlib import metadata

import pytest

from trajkit import doctor
from trajkit.doctor import Health, examine, libraries
from trajkit.errors import FileError


def requiring(monkeypatch, *requirements):
    monkeypatch.setattr(metadata, "requires", lambda _: list(requirements))
    return {check.name: check for check in libraries()}


def test_what_is_missing_is_told_by_what_needs_it(monkeypatch):
    told = requiring(monkeypatch, "nosuch-core>=1.2", "nosuch-extra>=3; extra == 'score'", "numpy")
    core, extra = told["nosuch-core"], told["nosuch-extra"]
    assert (core.health, core.hint) == (Health.FAIL, "pip install 'nosuch-core>=1.2'")
    assert (extra.health, extra.hint) == (Health.WARN, "pip install 'trajkit[score]'")
    assert extra.found == "not installed; only score needs it"
    assert (told["numpy"].health, told["numpy"].hint) == (Health.OK, None)


@pytest.mark.parametrize(
    ("version", "least", "health"),
    [
        ("1.26", "1.26", Health.OK),
        ("2.13.0+cpu", "2.11", Health.OK),
        ("18.0.0", "18", Health.OK),
        ("3.9.1", "3.10", Health.FAIL),
        ("0.21.0rc1", "0.21", Health.OK),
    ],
)
def test_versions_are_compared_as_numbers(monkeypatch, version, least, health):
    monkeypatch.setattr(metadata, "version", lambda _: version)
    assert requiring(monkeypatch, f"x>={least}")["x"].health is health


def test_metadata_of_the_package_name_every_library_that_it_needs():
    told = {check.name for check in libraries()}
    assert told >= {"numpy", "pyarrow", "tokenizers", "jinja2", "rich", "typer", "torch"}


def test_a_package_that_is_not_installed_says_so(monkeypatch):
    def missing(_):
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", missing)
    [check] = libraries()
    assert check.health is Health.WARN


@pytest.mark.parametrize(
    ("problem", "found"),
    [
        (ImportError("no\n/opt/al/numpy/core.so is damaged"), "ImportError: "),
        (FileError("F103", "expected room"), "F103: expected room"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_whatever_a_self_test_raises_is_a_failure(monkeypatch, tmp_path, problem, found):
    def fail():
        raise problem

    monkeypatch.setattr(doctor, "_encode", fail)
    told = {(c.area, c.name): c for c in examine(folder=tmp_path, load_torch=False)}
    check = told["self-test", "tokenizer"]
    assert check.health is Health.FAIL
    assert "/opt/al" not in check.found
    if not isinstance(problem, ImportError):
        assert check.found == found
    assert told["self-test", "parquet"].health is Health.OK


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path):
    told = {c.name: c for c in examine(folder=tmp_path / "nosuch", load_torch=False)}
    assert told["output"].health is Health.WARN
    assert "cannot be written" in told["output"].found
    assert str(tmp_path) not in told["output"].found


def test_a_file_system_without_locks_is_a_warning(monkeypatch, tmp_path):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    told = {c.name: c for c in examine(folder=tmp_path, load_torch=False)}
    assert told["output"].health is Health.WARN
    assert "no locks" in told["output"].found
    assert list(tmp_path.iterdir()) == []


def test_a_self_test_that_gives_another_answer_fails(monkeypatch, tmp_path):
    monkeypatch.setattr("trajkit.tokenizer.Tokenizer.text", lambda *_: "other")
    told = {(c.area, c.name): c for c in examine(folder=tmp_path, load_torch=False)}
    assert told["self-test", "tokenizer"].health is Health.FAIL
