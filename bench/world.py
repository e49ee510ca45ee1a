"""What plants of drift causes are made of: conversations in ids, framed as the families do it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trajkit.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent


ROLLOUTS = ROOT / "fixtures" / "rollouts" / "smollm2.jsonl"


SMOLLM2 = ROOT / ".cache" / "smollm2"


REAL = ROOT / ".cache" / "tokenizers"


@dataclass(frozen=True, slots=True)
class Frame:
    """How a family of templates frames turns."""

    bos: str
    opening: str
    closing: str
    between: str
    policy: str = "assistant"
    tool: str = "tool"
    system: str | None = "system"


CHATML = Frame("", "<|im_start|>{role}\n", "<|im_end|>", "\n")


FRAMES: dict[str, Frame] = {
    "smollm2": CHATML,
    "qwen3": CHATML,
    "llama3_1": Frame(
        "<|begin_of_text|>",
        "<|start_header_id|>{role}<|end_header_id|>\n\n",
        "<|eot_id|>",
        "",
        tool="ipython",
    ),
    "gptoss": Frame("", "<|start|>{role}<|message|>", "<|end|>", "", tool="tool"),
    "gemma3": Frame(
        "<bos>", "<start_of_turn>{role}\n", "<end_of_turn>", "\n", policy="model", system=None
    ),
    "deepseek_v3": Frame(
        "<｜begin▁of▁sentence｜>", "{mark}", "<｜end▁of▁sentence｜>", "", system=None
    ),
    "llama2": Frame("<s>", "[INST] ", "</s>", "", system=None),
}


MARKS = {"assistant": "<｜Assistant｜>"}


OTHER_ENDS = {
    "<|im_end|>": "<|endoftext|>",
    "<|eot_id|>": "<|end_of_text|>",
    "<|end|>": "<|return|>",
    "<end_of_turn>": "<eos>",
}


@dataclass(slots=True)
class Talk:
    """A conversation in ids, pieces encoded one by one, and where the policy spoke."""

    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list)
    actions: list[tuple[int, int]] = field(default_factory=list)

    def add(self, text: str) -> Talk:
        """Add text of the frame or the environment."""
        self.ids += encode(self.tokenizer, text)
        return self

    def act(self, ids: list[int]) -> Talk:
        """Add ids the policy sampled."""
        self.actions.append((len(self.ids), len(self.ids) + len(ids)))
        self.ids += ids
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """Two lists that differ for a known reason."""

    cause: str
    recorded: list[int]
    other: list[int]
    actions: tuple[tuple[int, int], ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    routes: tuple[str, ...] = ("pair",)


@dataclass(frozen=True, slots=True)
class World:
    """What plants are made of."""

    tokenizer: Tokenizer
    frame: Frame
    texts: list[str]
    rng: random.Random

    def opening(self, role: str) -> str:
        """Return how a role's turn begins."""
        name = self.frame.policy if role == "assistant" else role
        return self.frame.opening.format(role=name, mark=MARKS.get(role, "<｜User｜>"))

    def turn(self, role: str, text: str) -> str:
        """Return a whole turn."""
        return self.opening(role) + text + self.frame.closing + self.frame.between

    def talk(self, action: str | list[int], *, n_turns: int = 2, end: bool = True) -> Talk:
        """Return a conversation whose last words are an action."""
        talk = Talk(self.tokenizer).add(self.frame.bos) if self.frame.bos else Talk(self.tokenizer)
        for i in range(n_turns):
            talk.add(self.turn("user", self.texts[i % len(self.texts)]) + self.opening("assistant"))
            is_last = i == n_turns - 1
            said = action if is_last else self.texts[(i + 3) % len(self.texts)]
            ids = encode(self.tokenizer, said) if isinstance(said, str) else list(said)
            closing = encode(self.tokenizer, self.frame.closing)
            talk.act(ids + (closing if end or not is_last else []))
            if not is_last and self.frame.between:
                talk.add(self.frame.between)
        return talk


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text."""
    ids: list[int] = next(tokenizer.encode_batch([text])).tolist() if text else []
    return ids


def encode_exact(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return ids of single bytes and of a text's own id, so that it is spelt exactly."""
    one = one_id(tokenizer, text)
    if one is not None:
        return [one]
    by_byte = {tokenizer.token_bytes(i): i for i in range(512) if tokenizer.knows(i)}
    return [by_byte[bytes([byte])] for byte in text.encode()]


def exact(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return ids that spell a text character by character."""
    return [i for character in text for i in encode_exact(tokenizer, character)]


def one_id(tokenizer: Tokenizer, text: str) -> int | None:
    """Return the id that spells a text alone."""
    if tokenizer.prepends_space:
        ids = encode(tokenizer, "\n" + text)[len(encode(tokenizer, "\n")) :]
    else:
        ids = encode(tokenizer, text)
    is_it = len(ids) == 1 and tokenizer.token_bytes(ids[0]) == text.encode()
    return ids[0] if is_it else None


def world_of(tokenizer: Tokenizer, name: str, seed: int = 0) -> World:
    """Return a tokenizer's world: its frame, and texts of real rollouts."""
    texts = []
    for line in ROLLOUTS.read_text().splitlines():
        messages = json.loads(line)["messages"]
        texts += [m["content"] for m in messages if m["role"] == "assistant" and m["content"]]
    texts = [text.strip() for text in texts if len(text) > 20 and text.isprintable()]
    return World(tokenizer, FRAMES[name], texts[:12], random.Random(seed))
