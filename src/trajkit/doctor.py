"""What this machine has and can do, as checks that say ok, warn or fail.

Each check really does what it speaks of: ids are encoded, a record is written and read, a template
is rendered. A broken library is a result here, never a crash; torch is loaded in a process of its
own, so that even one that dies there is told apart.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trajkit import __version__
from trajkit.demo.write import TINY
from trajkit.errors import TrajkitError

PROBE_TEXT = "Naïve cafe\u0301 東京 🙂 <b>\r\n\t don't  stop "
"""Text that lossy tokenizers change: letters that compose, capitals, rare signs, white space."""
_TORCH_HINT = "pip install --force-reinstall torch"
_TORCH_SECONDS = 120
_TORCH = """
import json, torch
n = torch.cuda.device_count() if torch.cuda.is_available() else 0
props = [torch.cuda.get_device_properties(i) for i in range(n)]
devices = [{"name": p.name, "gib": round(p.total_memory / 2**30, 1)} for p in props]
built = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
built = [f"{name} {version}" for name, version in built.items() if version]
print(json.dumps({"built_for": built[0] if built else None, "devices": devices}))
"""
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:>=\s*(?P<least>[\d.]+))?(?:.*extra\s*==\s*['\"](?P<extra>[\w-]+))?"
)
_FOLDERS = re.compile(r"/\S*/")


class Health(StrEnum):
    """What a check came to."""

    OK = "ok"
    WARN = "warn"
    """Something works less well, or an optional part is not there."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        area: library, device, terminal, self-test or tokenizer.
        name: what was looked at.
        health: what it came to.
        found: the facts in a few words, not made safe to show yet.
        hint: what to do, where something is missing.
        facts: the same for programs.
    """

    area: str
    name: str
    health: Health
    found: str
    hint: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the check as JSON values."""
        return asdict(self)


def system() -> dict[str, str]:
    """Return versions of trajkit, Python and the platform; no names of users or machines."""
    return {
        "trajkit": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
    }


def examine(
    *, tokenizer: Path | None = None, folder: Path | None = None, load_torch: bool = True
) -> Iterator[Check]:
    """Yield every check, the quick ones first.

    Args:
        tokenizer: a tokenizer of the user's to look at, too.
        folder: where outputs would go; the current folder when `None`.
        load_torch: whether to load torch, in another process, and ask it for devices.
    """
    yield from libraries()
    for name, test in (
        ("tokenizer", _encode),
        ("parquet", _write_and_read),
        ("template", _render),
        ("output", lambda: _publish(folder or Path())),
    ):
        yield _tried("self-test", name, test)
    if tokenizer is not None:
        yield from _tokenizer(tokenizer)
    if load_torch and _installed("torch") is not None:
        yield _devices()


def libraries() -> Iterator[Check]:
    """Yield a check of each library that the package's own metadata asks for."""
    try:
        requirements = metadata.requires("trajkit") or []
    except metadata.PackageNotFoundError:
        found = "not installed as a package: what it needs is not known"
        yield Check(area="library", name="trajkit", health=Health.WARN, found=found)
        return
    for text in requirements:
        match = _REQUIREMENT.match(text)
        if match is not None:
            yield _library(match["name"], match["least"], match["extra"])


def _library(name: str, least: str | None, extra: str | None) -> Check:
    version = _installed(name)
    facts = {"version": version, "at_least": least, "extra": extra}
    needed = f"{name}>={least}" if least else name
    hint = f"pip install '{needed}'" if extra is None else f"pip install 'trajkit[{extra}]'"
    if version is None:
        found = "not installed" if extra is None else f"not installed; only {extra} needs it"
        health = Health.FAIL if extra is None else Health.WARN
    elif least is not None and _release(version) < _release(least):
        found, health = f"{version}, {least} or later is needed", Health.FAIL
    else:
        found, health, hint = version, Health.OK, ""
    return Check(
        area="library", name=name, health=health, found=found, hint=hint or None, facts=facts
    )


def _installed(name: str) -> str | None:
    """Return a package's version, `None` when it is not there or its metadata is damaged."""
    try:
        return str(metadata.version(name) or "") or None
    except metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, without zeros at the end."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def _tried(area: str, name: str, test: Callable[[], tuple[Health, str]]) -> Check:
    """Return what a test came to; whatever it raises is a failure with its reason."""
    try:
        health, found = test()
    except TrajkitError as problem:
        return _failed(area, name, f"{problem.code}: {problem.message}", problem.hint)
    except Exception as problem:  # noqa: BLE001 - a broken library may raise anything
        return _failed(area, name, _reason(f"{type(problem).__name__}: {problem}"))
    return Check(area=area, name=name, health=health, found=found)


def _failed(area: str, name: str, found: str, hint: str | None = None) -> Check:
    return Check(area=area, name=name, health=Health.FAIL, found=found, hint=hint)


def _reason(text: str) -> str:
    """Return the last line of a complaint, without the folders in front of file names."""
    lines = text.strip().splitlines() or ["no reason given"]
    return _FOLDERS.sub("…/", lines[-1].strip())


def _encode() -> tuple[Health, str]:
    from trajkit.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(TINY)
    [ids] = tokenizer.encode_batch([PROBE_TEXT])
    return _same(tokenizer.text(ids), PROBE_TEXT), f"{len(ids)} ids encoded and decoded"


def _write_and_read() -> tuple[Health, str]:
    from trajkit.records import ActionSource, PromptSource, Step, Trajectory, ids_array
    from trajkit.store.read import read_trajectories
    from trajkit.store.write import DatasetWriter

    step = Step(
        trajectory_id="self-test",
        step_index=0,
        is_terminal=True,
        action_source=ActionSource.SAMPLED,
        prompt_source=PromptSource.RECORDED,
        source_format="per-call",
        source_file="self-test",
        source_record=0,
        prompt_keep=0,
        prompt_delta=ids_array([1, 5, 6]),
        prompt_len=3,
        action_tokens=ids_array([7, 2]),
    )
    with TemporaryDirectory() as folder:
        path = Path(folder, "steps.parquet")
        with DatasetWriter(path) as writer:
            writer.write(Trajectory(trajectory_id="self-test", steps=(step,)))
        [back] = list(read_trajectories(path))
        n_bytes = path.stat().st_size
    ids = back.steps[0].action_tokens
    health = _same(None if ids is None else ids.tolist(), [7, 2])
    return health, f"one record written and read back ({n_bytes:,} bytes)"


def _render() -> tuple[Health, str]:
    from trajkit.template import load_template, render_text

    template = load_template(TINY)
    text = render_text(template, [{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    return _same(text, expected), f"one message rendered ({len(text)} characters)"


def _publish(folder: Path) -> tuple[Health, str]:
    """Publish a file twice beside where outputs would go; a place to write is not always there."""
    from trajkit.safe.files import publish_bytes
    from trajkit.safe.lock import try_lock

    try:
        with TemporaryDirectory(dir=folder, prefix=".trajkit-doctor-") as inner:
            path = Path(inner, "output")
            for data in (b"old", b"new"):
                publish_bytes(path, data, overwrite=True)
            health = _same(path.read_bytes(), b"new")
            with path.open("rb") as file:
                has_locks = try_lock(file.fileno())
    except OSError as problem:
        return Health.WARN, f"the current folder cannot be written: {problem.strerror}"
    if has_locks is None:
        return Health.WARN, "the current folder knows no locks: let one process write an output"
    return health, "the current folder takes temporary files, fsync, rename and locks"


def _same(found: object, expected: object) -> Health:
    return Health.OK if found == expected else Health.FAIL


def _tokenizer(path: Path) -> Iterator[Check]:
    """Yield what there is to say about a tokenizer of the user's, and about its template."""
    from trajkit.template import load_template
    from trajkit.tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(path)
        [ids] = tokenizer.encode_batch([PROBE_TEXT])
    except TrajkitError as problem:
        yield _failed("tokenizer", path.name, str(problem), problem.hint)
        return
    control = list(tokenizer.control.values())
    facts = {
        "n_vocab": tokenizer.n_vocab,
        "control": control,
        "normalizers": list(tokenizer.normalizer_kinds),
        "fingerprint": tokenizer.fingerprint,
        "n_probe_ids": len(ids),
    }
    normalizer = "+".join(tokenizer.normalizer_kinds) or "no normaliser"
    found = f"{tokenizer.n_vocab:,} ids, {len(control):,} of them control tokens; {normalizer}"
    yield Check(
        area="tokenizer",
        name=tokenizer.name,
        health=Health.OK,
        found=f"{found}; fingerprint {tokenizer.fingerprint[:12]}",
        facts=facts,
    )
    [back] = tokenizer.decode_batch([ids])
    is_same = back == PROBE_TEXT
    yield Check(
        area="tokenizer",
        name="round trip",
        health=Health.OK if is_same else Health.WARN,
        found="a difficult text comes back as it was"
        if is_same
        else "a difficult text comes back changed",
        hint=None if is_same else "trajkit drift-check shows whether your data are touched",
        facts={"text": PROBE_TEXT, "decoded": back},
    )
    try:
        template = load_template(path if path.is_dir() else path.parent)
    except TrajkitError as problem:
        health = Health.WARN if problem.code == "T104" else Health.FAIL
        yield Check(area="tokenizer", name="template", health=health, found=str(problem))
        return
    yield Check(
        area="tokenizer",
        name="template",
        health=Health.OK,
        found=f"{Path(template.origin or '').name}, sha256 {template.sha256[:12]}",
        facts={"sha256": template.sha256, "tells_time": template.tells_time},
    )


def _devices() -> Check:
    """Return what torch says about devices, asked in another process.

    That process does not look into the current folder for modules, and may die as it likes.
    """
    command = [sys.executable, "-P", "-c", _TORCH]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_TORCH_SECONDS
        )
        facts = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as problem:
        code = problem.returncode
        reason = _reason(problem.stderr) if code > 0 else f"it died of signal {-code}"
        return _failed("device", "torch", f"torch does not load: {reason}", _TORCH_HINT)
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as problem:
        reason = f"torch does not load: {type(problem).__name__}"
        return _failed("device", "torch", reason, _TORCH_HINT)
    devices = [f"{device['name']} ({device['gib']:g} GiB)" for device in facts["devices"]]
    health, hint = Health.OK, None
    if devices:
        found = ", ".join(devices)
    elif facts["built_for"]:
        found = f"torch is built for {facts['built_for']}, but sees no device"
        health, hint = Health.WARN, "score runs on the CPU; nvidia-smi shows whether a GPU is there"
    else:
        found = "no GPU: score runs on the CPU"
    return Check(area="device", name="torch", health=health, found=found, hint=hint, facts=facts)
