from pathlib import Path

import pytest
from hypothesis import settings

# the machines that run the suite share their cores: how long one example takes says nothing
settings.register_profile("trajkit", deadline=None)
settings.load_profile("trajkit")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write what the code gives into the golden files"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Return a check of text against a file in `tests/golden`, which `--rewrite` writes anew."""

    def check(name: str, text: str) -> None:
        file = Path(__file__).parent / "golden" / name
        if request.config.getoption("--rewrite"):
            file.write_text(text, encoding="utf-8", newline="")
        assert file.read_bytes().decode("utf-8") == text

    return check
