"""`trajkit doctor`: what it says about this machine, and about broken ones."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
import sys
import unicodedata

import pytest
from tokenizers import normalizers

from tests.tokenizer_builders import TINY, metaspace, save

DEVICES = """
from types import SimpleNamespace as N
version = N(cuda=CUDA, hip=None)
properties = N(name="Fake GPU\\x1b[31m", total_memory=80 * 2**30)
cuda = N(
    is_available=lambda: N_DEVICES > 0,
    device_count=lambda: N_DEVICES,
    get_device_properties=lambda i: properties,
)
"""


def doctor(*words, path=None, cwd=None, **env):
    """Run the command; `path` is a folder whose modules go before the installed ones."""
    found = {"PYTHONPATH": str(path)} if path is not None else {}
    return subprocess.run(
        [sys.executable, "-m", "trajkit", "doctor", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | {"NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"} | found | env,
    )


def checks(*words, **given):
    """Return the checks of the JSON form by area and name."""
    done = doctor("--format", "json", *words, **given)
    facts = json.loads(done.stdout)
    assert facts["schema"] == "trajkit.doctor/1"
    assert (done.returncode == 1) == (facts["health"] == "fail")
    return {(check["area"], check["name"]): check for check in facts["checks"]}


def fake_package(folder, name, version, source):
    """Return a folder with a module, and metadata that say that it is installed."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source)
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_all_is_well_here_and_every_line_says_so_in_words():
    done = doctor("--no-torch")
    assert done.returncode == 0, done.stdout
    first, *lines, last = done.stdout.splitlines()
    assert first.startswith("trajkit ")
    assert platform.python_version() in first
    assert {line.split()[0] for line in lines} <= {"ok", "warn", "hint:"}
    for name in ("numpy", "pyarrow", "tokenizers", "self-test: parquet", "self-test: template"):
        assert any(line.startswith(f"ok    {name} ") for line in lines), name
    assert last.startswith("nothing failed: ")
    assert done.stderr == ""


def test_the_report_names_no_user_machine_or_variable(tmp_path):
    secret = "hunter2-in-the-environment"
    done = doctor("--format", "json", cwd=tmp_path, path=tmp_path, API_KEY=secret)
    for private in (secret, str(tmp_path), sys.executable, platform.node()):
        assert private not in done.stdout
    assert f'"{getpass.getuser()}"' not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_is_described(tmp_path):
    told = checks("--no-torch", "-t", TINY)
    facts = told["tokenizer", "tiny"]["facts"]
    assert facts["n_vocab"] == 512
    assert facts["control"] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert facts["normalizers"] == []
    assert len(facts["fingerprint"]) == 64
    assert told["tokenizer", "round trip"]["health"] == "ok"
    assert "chat_template.jinja" in told["tokenizer", "template"]["found"]


def test_a_tokenizer_that_loses_text_and_has_no_template_is_a_warning(tmp_path):
    backend = metaspace(prefix=False)
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), backend.normalizer])
    told = checks("--no-torch", "-t", save(backend, tmp_path / "lossy"))
    assert told["tokenizer", "lossy"]["facts"]["normalizers"] == ["NFC", "Replace"]
    assert "NFC+Replace" in told["tokenizer", "lossy"]["found"]
    assert told["tokenizer", "round trip"]["health"] == "warn"
    facts = told["tokenizer", "round trip"]["facts"]
    assert facts["decoded"] == unicodedata.normalize("NFC", facts["text"]) != facts["text"]
    assert told["tokenizer", "template"]["health"] == "warn"
    assert "T104" in told["tokenizer", "template"]["found"]


@pytest.mark.parametrize(
    ("file", "text", "code"),
    [
        ("tokenizer.json", "{", "T101"),
        ("other.json", "{}", "F101"),
        ("tokenizer_config.json", "[]", "I201"),
    ],
)
def test_a_tokenizer_that_does_not_load_fails_and_the_rest_is_told(tmp_path, file, text, code):
    if code == "I201":
        save(metaspace(prefix=False), tmp_path)
    (tmp_path / file).write_text(text)
    done = doctor("--no-torch", "-t", tmp_path)
    assert done.returncode == 1
    assert any(line.startswith("fail") and code in line for line in done.stdout.splitlines())
    assert "ok    self-test: parquet" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 failed: ")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise OSError('/home/al/lib/libcudart.so: cannot open')", "…/libcudart.so: cannot open"),
        ("import os; os.kill(os.getpid(), 11)", "it died of signal 11"),
        ("import sys; sys.exit(0)", "IndexError"),
    ],
)
def test_a_torch_that_does_not_load_is_a_failure_and_no_crash(tmp_path, source, reason):
    told = checks(path=fake_package(tmp_path, "torch", "9.9", source))
    check = told["device", "torch"]
    assert check["health"] == "fail"
    assert reason in check["found"]
    assert "al/lib" not in check["found"]
    assert told["library", "torch"]["facts"]["version"] == "9.9"


@pytest.mark.parametrize(
    ("n_devices", "cuda", "health", "found"),
    [
        (2, "'12.8'", "ok", "Fake GPU␛[31m (80 GiB), Fake GPU␛[31m (80 GiB)"),
        (0, "'12.8'", "warn", "torch is built for CUDA 12.8, but sees no device"),
        (0, "None", "ok", "no GPU: score runs on the CPU"),
    ],
)
def test_devices_are_named(tmp_path, n_devices, cuda, health, found):
    source = f"CUDA = {cuda}\nN_DEVICES = {n_devices}\n{DEVICES}"
    done = doctor(path=fake_package(tmp_path, "torch", "9.9", source))
    assert done.returncode == 0
    [line] = [line for line in done.stdout.splitlines() if "device: torch" in line]
    assert line == f"{health:<6}{'device: torch':<22} {found}"


def test_without_torch_nothing_is_loaded(tmp_path):
    source = f"open({str(tmp_path / 'loaded')!r}, 'w')"
    path = fake_package(tmp_path, "torch", "9.9", source)
    told = checks("--no-torch", path=path)
    assert ("device", "torch") not in told
    assert not (tmp_path / "loaded").exists()


def test_modules_of_the_current_folder_are_not_loaded(tmp_path):
    (tmp_path / "torch.py").write_text("open('loaded', 'w')")
    doctor(cwd=tmp_path)
    assert not (tmp_path / "loaded").exists()


def test_a_library_that_is_too_old_fails_with_the_command_that_mends_it(tmp_path):
    (tmp_path / "rich-1.0.dist-info").mkdir()
    (tmp_path / "rich-1.0.dist-info" / "METADATA").write_text("Name: rich\nVersion: 1.0\n")
    done = doctor("--no-torch", path=tmp_path)
    assert done.returncode == 1
    assert "fail  rich                   1.0, 13.8 or later is needed" in done.stdout
    assert "      hint: pip install 'rich>=13.8'" in done.stdout


def test_a_terminal_without_unicode_is_a_warning():
    check = checks("--no-torch", PYTHONIOENCODING="ascii", COLUMNS="72")["terminal", "stdout"]
    assert check["health"] == "warn"
    assert check["facts"] == {
        "is_terminal": False,
        "encoding": "ascii",
        "unicode": False,
        "width": 72,
        "colour": False,
    }


def test_colour_makes_bold_what_is_not_ok_and_changes_no_word():
    plain, shown = (doctor("--no-torch", "--color", c, "-t", "/") for c in ("never", "always"))
    assert "\x1b[1mfail" in shown.stdout
    assert "\x1b[1mok" not in shown.stdout
    assert shown.stdout.replace("\x1b[1m", "").replace("\x1b[0m", "").replace(
        ", colours", ", no colours"
    ) == (plain.stdout)


def test_a_current_folder_that_is_gone_is_a_warning(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"import os; os.rmdir({str(gone)!r}); from trajkit.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "doctor", "--no-torch"],
        cwd=gone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "warn  self-test: output" in done.stdout
