"""What the tests of templates share."""

from __future__ import annotations

import pytest

from tests.tokenizer_builders import TINY
from trajkit.template import (
    load_template,
)
from trajkit.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def tiny():
    return load_tokenizer(TINY)


@pytest.fixture
def template(tmp_path):
    def make(source: str):
        file = tmp_path / "template.jinja"
        file.write_text(source)
        return load_template(file)

    return make
