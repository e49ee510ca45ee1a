"""The transformers library: kept offline and silent, and never handed a checkpoint's folder.

It gets tensors and a configuration without loader keys, so that nothing in the folder can make it
read another file, run code or ask a hub.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from trajkit.errors import InputError, NumericError, Place, UsageProblem
from trajkit.scoring.loading.checkpoint import Checkpoint

_ATTENTION = ("sdpa", "eager")
"""Attention implementations in order of preference; the checkpoint has no say."""
_CONSTRUCTION = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError)
"""What constructors raise over a configuration's value that nothing has looked at before."""


_BUILDING = threading.Lock()
"""The library patches itself while it builds a model; two threads would leave it patched."""
_QUIETING = threading.Lock()
_quiet: list[tuple[int, bool]] = []
"""A copy, for each block that is open in any thread, of how talkative the library was before."""


@contextmanager
def quiet_transformers() -> Iterator[Any]:
    """Yield the transformers library: offline, without progress bars or log lines while inside.

    Blocks may be open in several threads: the library is as before when the last one closes.
    """
    if "huggingface_hub" not in sys.modules:  # it reads this once; who has it has settled that
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers
    from transformers.utils import logging as library_logging

    logging: Any = library_logging
    with _QUIETING:
        now = logging.get_verbosity(), logging.is_progress_bar_enabled()
        _quiet.append(_quiet[-1] if _quiet else now)
        logging.set_verbosity(logging.CRITICAL)
        logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        with _QUIETING:
            verbosity, has_bars = _quiet.pop()
            if not _quiet:
                logging.set_verbosity(verbosity)
                if has_bars:
                    logging.enable_progress_bar()


def architecture_of(checkpoint: Checkpoint, place: Place) -> tuple[Any, Any]:
    """Return the library's own model class and configuration for a checkpoint.

    Raises:
        UsageProblem: U103 when it knows no such causal language model.
        InputError: I201 when the configuration does not fit the architecture.
    """
    name = checkpoint.config["model_type"]
    with quiet_transformers() as transformers:
        if name not in transformers.CONFIG_MAPPING:
            raise UsageProblem(
                "U103",
                f"--model: transformers {transformers.__version__} knows no architecture {name!r}",
                place=place,
                hint="pip install -U transformers",
            )
        config = _configuration(transformers, checkpoint, place)
        kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
        trained_as = ", ".join(map(str, config.architectures or ()))
        if kind is None or "Classification" in trained_as or "Reward" in trained_as:
            raise UsageProblem(
                "U103",
                f"--model: {trained_as or name} is not a causal language model",
                place=place,
            )
        text_kind = type(config).sub_configs.get("text_config")
        if text_kind is not None and kind.config_class is text_kind:
            config = config.get_text_config()
        return kind, config


def _configuration(transformers: Any, checkpoint: Checkpoint, place: Place) -> Any:
    """Return the configuration object, read the library's way from a folder with nothing else."""
    try:
        with TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(checkpoint.config), encoding="utf-8")
            return transformers.AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as problem:  # each configuration class raises its own
        reason = str(problem).strip().splitlines()[-1:] or [type(problem).__name__]
        raise InputError(
            "I201",
            f"config.json does not fit {checkpoint.config['model_type']}: {reason[0].strip()}",
            place=place,
        ) from problem


def build_model(
    kind: Any, config: Any, tensors: dict[str, torch.Tensor], dtype: torch.dtype, place: Place
) -> tuple[Any, Mapping[str, Any]]:
    """Return a model with the tensors in it, and the library's report of what did not fit.

    Raises:
        UsageProblem: U105 when the architecture needs a package that is not installed.
        InputError: I201 when a constructor cannot work with a value of the configuration.
        NumericError: N102 when it cannot be built from this configuration and these tensors.
    """
    problem: Exception | None = None
    for attention in _ATTENTION:
        config._attn_implementation = attention  # noqa: SLF001 - the library's only name for it
        try:
            with _BUILDING:
                loaded: tuple[Any, Mapping[str, Any]] = kind.from_pretrained(
                    None,
                    config=config,
                    state_dict=dict(tensors),
                    dtype=dtype,
                    ignore_mismatched_sizes=True,
                    local_files_only=True,
                    output_loading_info=True,
                )
        except ValueError as found:  # this architecture has no such attention
            problem = found
        except ImportError as found:
            raise UsageProblem("U105", f"the model needs more: {found}", place=place) from found
        except _CONSTRUCTION as found:
            sentence = ": ".join([type(found).__name__, *str(found).strip().splitlines()[:1]])
            raise InputError(
                "I201",
                f"no {kind.__name__} can be made from it: {sentence}",
                place=Place(file=str(Path(place.file or "", "config.json"))),
            ) from found
        except RuntimeError as found:
            reason = str(found).strip().splitlines()[0]
            raise NumericError("N102", f"the weights do not fit: {reason}", place=place) from found
        else:
            return loaded
    raise NumericError("N102", f"the model cannot be built: {problem}", place=place) from problem
