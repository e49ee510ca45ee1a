"""Trajectories with messages beside their ids, and the drift routes walked over them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.builders import Call, make_trajectory
from trajkit.drift.routes.render import Renderer, load_renderer, walk_render
from trajkit.drift.walked import Walked, merged, unexplained
from trajkit.records import Trajectory
from trajkit.template import Allow, TextPiece, encode_literally
from trajkit.tokenizer import Tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def ids_of(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a text, its control text taken for control tokens."""
    return list(next(iter(tokenizer.encode_batch([text]))).tolist())


def literal(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a text without any control token."""
    return list(encode_literally([TextPiece(text, Allow.NONE)], tokenizer).ids.tolist())


def say(*texts: str) -> list[dict[str, str]]:
    """Return messages of user and policy in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def talk(
    calls: Sequence[Call],
    messages: Sequence[dict[str, Any]],
    trajectory_id: str = "t",
    **given: Sequence[Any],
) -> Any:
    """Return a trajectory of calls with the messages it came with, one policy message a call."""
    added: list[list[Any]] = [[]]
    actions = []
    for message in messages:
        if message["role"] == "assistant":
            actions.append(message)
            added.append([])
        else:
            added[-1].append(message)
    assert len(actions) == len(calls)
    n_before = [sum(map(len, added[:k])) + k for k in range(len(calls))]
    given.setdefault("messages_keep", [None, *n_before[1:]])
    after = json.dumps({"messages_after": added[-1]})
    return make_trajectory(
        calls,
        trajectory_id,
        messages_json=[json.dumps(one) for one in added[:-1]],
        action_message_json=[json.dumps(one) for one in actions],
        extra_json=[None] * (len(calls) - 1) + [after],
        **given,
    )


def told(walked: Walked) -> list[Any]:
    """Return the findings of a walk in the order of their tokens."""
    return merged(walked.found)


def rendered(
    trajectory: Trajectory, tokenizer: Tokenizer, template: Renderer | Path | str, **given: Any
) -> Walked:
    """Return what route `render` finds in one trajectory; a template may be given as its text."""
    renderer = renderer_of(template, **given) if isinstance(template, str | Path) else template
    (walked,) = walk_render([trajectory], tokenizer, lambda _: True, unexplained, lambda: renderer)
    return walked


def renderer_of(
    template: Path | str, folder: Path | None = None, now: datetime | None = None, **kwargs: Any
) -> Renderer:
    """Return the renderer of a template file, or of a template's text."""
    if isinstance(template, Path):
        return load_renderer(template, folder, kwargs=kwargs, now=now)
    from trajkit.template import ChatTemplate

    return load_renderer(ChatTemplate(source=template), folder, kwargs=kwargs, now=now)
