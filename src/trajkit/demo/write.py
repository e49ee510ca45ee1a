"""The demo's files into a folder of the user's: whole, or not at all."""

from __future__ import annotations

import contextlib
import glob
import shutil
from pathlib import Path

from trajkit.errors import Place, RefusedError, UsageProblem
from trajkit.safe.files import publish_bytes, remove_quietly
from trajkit.safe.lock import faults_named, locked, name_temp

HERE = Path(__file__).parent
TINY = HERE / "tiny"
"""A folder that is tokenizer and checkpoint in one."""

FILES: dict[str, str] = {
    "tiny/tokenizer.json": "a byte-level tokenizer of 512 ids",
    "tiny/tokenizer_config.json": "its special tokens",
    "tiny/chat_template.jinja": "a small ChatML template",
    "tiny/config.json": "a Llama of two layers",
    "tiny/generation_config.json": "its end of turn",
    "tiny/model.safetensors": "its weights, random",
    "logs/messages.jsonl": "1 trajectory as chat messages, with a tool call; no ids",
    "logs/text.jsonl": "1 trajectory as text with tags; no ids",
    "logs/calls.jsonl": "2 trajectories with the ids of each call and their log-probs",
}
"""Every file, and what it holds; written in this order, so that what is read first comes last."""


def write_demo(folder: Path, *, overwrite: bool = False) -> list[Path]:
    """Return the files written into `folder`, in the order of `FILES`.

    A folder that is not there appears whole, by one rename. In one that is there each file is
    replaced by itself, other files stay, and after a fault new ones are taken back.

    Raises:
        UsageProblem: U101, the folder is not empty and `overwrite` is not set, or is a file.
        RefusedError: R103, the folder or one in it is a symbolic link.
        FileError: F102 or F103, it cannot be written, or another process is writing it.
    """
    target = folder.absolute()
    with faults_named(target):
        _check(target, overwrite=overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target):
        _check(target, overwrite=overwrite)
        if target.exists():
            _fill(target)
        else:
            _make(target)
    return [folder / name for name in FILES]


def _check(target: Path, *, overwrite: bool) -> None:
    """Return if the demo may be written here."""
    for path in (target, *(target / name for name in ("tiny", "logs"))):
        if path.is_symlink():
            message = "expected a plain folder, found a symbolic link"
            raise RefusedError(
                "R103", message, place=Place(file=str(path)), hint="name the folder itself"
            )
    place = Place(file=str(target))
    if target.exists() and not target.is_dir():
        message = "expected a folder, or a new name for one, found a file"
        raise UsageProblem("U101", message, place=place, hint="give another name")
    if not overwrite and target.is_dir() and any(target.iterdir()):
        raise UsageProblem(
            "U101",
            "expected a new or an empty folder, found one with files in it",
            place=place,
            hint="give another name, or --force: it replaces the demo's files and no others",
        )


def _make(target: Path) -> None:
    """Make the folder under another name, then move it into place."""
    for left_over in target.parent.glob(f".{glob.escape(target.name)}.{'?' * 16}.tmp"):
        shutil.rmtree(left_over, ignore_errors=True)
    temp = name_temp(target)
    try:
        with faults_named(target):
            temp.mkdir()
        _fill(temp)
        with faults_named(target):
            temp.rename(target)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise


def _fill(target: Path) -> None:
    """Write every file; after a fault, take back the files and folders that were not there."""
    new: list[Path] = []
    try:
        for name in FILES:
            path = target / name
            for part in (path.parent, path):
                if not part.exists():
                    new.append(part)
            with faults_named(path):
                path.parent.mkdir(exist_ok=True)
            publish_bytes(path, (HERE / name).read_bytes(), overwrite=True)
    except BaseException:
        for path in reversed(new):
            remove_quietly(path)
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
