"""What the ids of a trajectory spell: text by pieces, cut wherever a later prompt leaves off.

A state's text is the text of its pieces, one after the other: each delta and each action is decoded
by itself. A character cut by the end of a piece is U+FFFD there, for ever, so that text once
written never changes when something is appended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trajkit.records import Ids, Step
from trajkit.tokenizer import Tokenizer


@dataclass(slots=True)
class Speller:
    """Names the ids of one trajectory's steps, in step order."""

    tokenizer: Tokenizer
    _carried: dict[int, str] = field(default_factory=dict)
    """What a step's delta spells before its own ids: the rest of a character cut by the keep."""

    def delta(self, index: int, parent: Step | None, keep: int, ids: Ids) -> tuple[int, str]:
        """Return text_keep and text_delta of a step.

        Args:
            index: the step's own.
            parent: the step its prompt grows from, with its texts.
            keep: how many ids of the parent's prompt + action it keeps.
            ids: [D] the ids after those.
        """
        kept, carried = (0, "") if parent is None else self._cut(parent, keep)
        if carried:
            self._carried[index] = carried
        return kept, carried + self.tokenizer.text(ids)

    def _cut(self, step: Step, n_ids: int) -> tuple[int, str]:
        """Return the bytes of a step's text that `n_ids` ids keep, and what they spell beyond.

        The second is empty unless the cut goes through a character.
        """
        while n_ids <= (step.prompt_keep or 0) and step.origin is not None:
            step = step.origin
        n_own = n_ids - (step.prompt_keep or 0)
        delta, whole = step.prompt_delta, step.text_delta
        if delta is None or whole is None:
            raise ValueError("a prompt grows from steps whose ids are spelt")
        before = step.text_keep or 0
        if n_own <= len(delta):
            text = self._carried.get(step.step_index, "") + self.tokenizer.text(delta[:n_own])
        else:
            before += len(whole.encode("utf-8"))
            action = step.action_tokens
            text = "" if action is None else self.tokenizer.text(action[: n_own - len(delta)])
            whole = step.action_text or ""
        # only the last character can differ: U+FFFD where the cut goes through one
        same = len(text) if whole.startswith(text) else len(text) - 1
        return before + len(text[:same].encode("utf-8")), text[same:]
