import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import trajkit
from tests.score_builders import TINY, edit_config, random_model, tiny_llama
from trajkit.errors import InputError, Place, UsageProblem
from trajkit.scoring.loading.checkpoint import open_checkpoint
from trajkit.scoring.loading.loader import architecture_of, build_model, quiet_transformers

SRC = str(Path(trajkit.__file__).parents[1])


def test_our_attention_wins_over_the_configurations() -> None:
    model = random_model("llama", **TINY)
    config = transformers.LlamaConfig(**TINY)
    config._attn_implementation = "evil/kernel"
    built, report = build_model(
        type(model), config, model.state_dict(), torch.float32, Place(file="m")
    )
    assert built.config._attn_implementation == "sdpa"
    assert not report["missing_keys"]


def test_architectures_without_our_first_choice_get_the_second() -> None:
    config = {**TINY, "num_local_experts": 4}
    model = random_model("gpt_oss", **config)
    built, _ = build_model(
        type(model), model.config, model.state_dict(), torch.float32, Place(file="m")
    )
    assert built.config._attn_implementation == "eager"


def test_a_package_the_architecture_needs_is_named() -> None:
    class Needy:
        @classmethod
        def from_pretrained(cls, *_: Any, **__: Any) -> Any:
            raise ImportError("this model needs `left-pad`")

    with pytest.raises(UsageProblem) as caught:
        build_model(Needy, transformers.LlamaConfig(**TINY), {}, torch.float32, Place(file="m"))
    assert caught.value.code == "U105"
    assert "left-pad" in caught.value.message


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (KeyError("nope"), "KeyError: 'nope'"),
        (TypeError("'<' not supported\nmore"), "TypeError: '<' not supported"),
        (AttributeError("no attribute 'x'"), "AttributeError: no attribute 'x'"),
        (IndexError("list index out of range"), "IndexError: list index out of range"),
        (AssertionError(), "AssertionError"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_what_a_constructor_stumbles_over_is_the_configurations_fault(
    problem: Exception, sentence: str
) -> None:
    class Clumsy:
        @classmethod
        def from_pretrained(cls, *_: Any, **__: Any) -> Any:
            raise problem

    with pytest.raises(InputError) as caught:
        build_model(Clumsy, transformers.LlamaConfig(**TINY), {}, torch.float32, Place(file="m"))
    assert caught.value.code == "I201"
    assert caught.value.message.endswith(f": {sentence}")
    assert caught.value.place == Place(file=str(Path("m", "config.json")))


def test_the_class_is_the_librarys_own(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_llama(tmp_path / "m"))
    kind, config = architecture_of(checkpoint, Place(file="m"))
    assert kind is transformers.LlamaForCausalLM
    assert config.hidden_size == TINY["hidden_size"]


def test_the_librarys_own_ways_of_reading_a_configuration_hold(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    layers = ["sliding_attention", "full_attention"]
    edit_config(folder, model_type="mistral", layer_types=layers, odd={"__float__": "Infinity"})
    kind, config = architecture_of(open_checkpoint(folder), Place(file="m"))
    assert kind is transformers.MinistralForCausalLM  # mistral has one kind of layer
    assert config.odd == float("inf")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("trajkit.scoring", "torch"),
        ("trajkit.scoring.report", "torch"),
        ("trajkit.scoring.planning.forecast", "torch"),
        ("trajkit.scoring.run", "transformers"),
    ],
)
def test_heavy_libraries_wait_until_they_are_needed(module: str, absent: str) -> None:
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": SRC}, check=True)


def test_the_library_is_quiet_inside_and_as_before_outside() -> None:
    before = transformers.logging.get_verbosity()
    with suppress(KeyError), quiet_transformers() as library:
        assert library.__name__ == "transformers"
        assert not transformers.logging.is_progress_bar_enabled()
        raise KeyError
    assert transformers.logging.get_verbosity() == before
    assert transformers.logging.is_progress_bar_enabled()


OFFLINE = """
import os, sys
{before}
from trajkit.scoring.loading.loader import quiet_transformers
with quiet_transformers():
    from huggingface_hub import constants
print(os.environ.get("HF_HUB_OFFLINE"), constants.HF_HUB_OFFLINE)
"""


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("", "1 True"),
        ("import huggingface_hub", "None False"),
        ("os.environ['HF_HUB_OFFLINE'] = '0'", "0 False"),
    ],
)
def test_the_hub_is_off_unless_the_process_has_it_already(before: str, told: str) -> None:
    environment = os.environ | {"PYTHONPATH": SRC}
    environment.pop("HF_HUB_OFFLINE", None)
    made = subprocess.run(
        [sys.executable, "-c", OFFLINE.format(before=before)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert made.stdout.split() == told.split()


def test_the_library_is_quiet_until_the_last_of_several_blocks_closes() -> None:
    before = transformers.logging.get_verbosity()
    first, second = ExitStack(), ExitStack()
    first.enter_context(quiet_transformers())
    second.enter_context(quiet_transformers())
    first.close()
    assert not transformers.logging.is_progress_bar_enabled()
    second.close()
    assert transformers.logging.get_verbosity() == before
    assert transformers.logging.is_progress_bar_enabled()


def test_models_are_built_one_at_a_time() -> None:
    inside, most = [0], [0]

    class Kind:
        @staticmethod
        def from_pretrained(*_: Any, **__: Any) -> tuple[str, dict[str, str]]:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.02)
            inside[0] -= 1
            return "model", {}

    def build(_: int) -> Any:
        return build_model(Kind, SimpleNamespace(), {}, torch.float32, Place())[0]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, range(4))) == ["model"] * 4
    assert most == [1]
