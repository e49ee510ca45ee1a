from pathlib import Path

import pytest

from tests.score_builders import tiny_llama
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import load_model


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "tiny")


@pytest.fixture(scope="session")
def llama(llama_dir: Path) -> LoadedModel:
    return load_model(llama_dir, device="cpu")
