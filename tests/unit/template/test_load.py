"""Chat templates are found where they lie, and nowhere else."""

from __future__ import annotations

import json

import pytest

from tests.template_builders import (
    say,
)
from trajkit.errors import FileError, InputError, RefusedError
from trajkit.template import (
    Setting,
    load_template,
    render_text,
)


def test_a_folder_s_own_file_goes_before_its_configuration(tmp_path):
    config = {
        "chat_template": "old",
        "bos_token": {"content": "<s>", "special": True},
        "eos_token": "</s>",
        "pad_token": None,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "x", "unk_token": "<unk>"}')
    old = load_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}new{{ eos_token }}")
    new = load_template(tmp_path)
    assert render_text(old, say("a")) == "old"
    assert render_text(new, say("a")) == "<s>new</s>"
    assert dict(new.special_tokens) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    assert new.origin == str(tmp_path / "chat_template.jinja")
    assert old.sha256 != new.sha256


def test_of_several_templates_the_one_for_tools_is_taken_with_tools(tmp_path):
    entries = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools | length }} tools"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entries}))
    template = load_template(tmp_path)
    assert render_text(template, say("a")) == "plain"
    assert render_text(template, say("a"), Setting(tools=[{}])) == "1 tools"


def test_a_template_file_takes_its_special_tokens_from_a_folder(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    file = tmp_path / "other.jinja"
    file.write_text("{{ bos_token }}|")
    assert render_text(load_template(file), say("a")) == "|"
    assert render_text(load_template(file, tmp_path), say("a")) == "<s>|"


@pytest.mark.parametrize("config", [{}, {"chat_template": [{"name": "rag", "template": "x"}]}])
def test_a_folder_without_a_template_is_an_error(tmp_path, config):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError) as caught:
        load_template(tmp_path)
    assert caught.value.code == "T104"


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("chat_template.jinja", b"{% for %}", "T105"),
        ("chat_template.jinja", b"\xff", "I101"),
        ("tokenizer_config.json", b"{", "I102"),
        ("tokenizer_config.json", b"[" * 100_000, "I102"),
        ("tokenizer_config.json", b"[]", "I201"),
    ],
)
def test_a_damaged_template_is_an_error(tmp_path, name, content, code):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_template(tmp_path)
    assert caught.value.code == code


def test_a_missing_template_file_is_an_error(tmp_path):
    with pytest.raises(FileError):
        load_template(tmp_path / "none.jinja")


def test_a_link_out_of_the_folder_is_refused_but_not_one_inside_a_download_cache(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("root:x")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "chat_template.jinja").symlink_to(secret)
    with pytest.raises(RefusedError) as caught:
        load_template(folder)
    assert caught.value.code == "R106"
    assert "root:x" not in str(caught.value)
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "1").write_text("from the cache")
    (snapshot / "chat_template.jinja").symlink_to("../../blobs/1")
    assert render_text(load_template(snapshot), say("a")) == "from the cache"
