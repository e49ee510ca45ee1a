"""The chat-template door: messages to text, with whose text each piece is, and to ids.

    load.py      a file or folder → `ChatTemplate`
    sandbox.py   what a template may do, and how much
    leaves.py    the strings of a conversation, and private marks in their place
    spans.py     a render and its marked twin → where each string stands
    rendering.py messages → `Rendered`: the text, and the spans of every message
    edges.py     where the text around a policy message begins and ends
    measure.py   one policy message → its `Turn`, by the step's own renders
    habits.py    in which form a template takes calls and nulls
    epochs.py    what a step saw before the user went on, out of two texts
    turns.py     messages → a `Turn` per policy message, in linear time
    literal.py   pieces of text → ids, control tokens only where they are meant

A template is a program of strangers: it runs in a sandbox, and what it does with a string is
observed, never assumed. Where the observation does not explain the text, the answer is `UNKNOWN`.
"""

from trajkit.template.edges import common_prefix as shared_text
from trajkit.template.habits import Habits, habits_of, suited
from trajkit.template.leaves import REASONING, Leaf, Nulls, Part
from trajkit.template.literal import Allow, Forged, LiteralText, TextPiece, encode_literally
from trajkit.template.load import ChatTemplate, load_template
from trajkit.template.measure import Turn, TurnFit
from trajkit.template.rendering import Rendered, Setting, prompt_for_step, render, render_text
from trajkit.template.spans import Fit, LeafSpan
from trajkit.template.turns import turn_spans

__all__ = [
    "REASONING",
    "Allow",
    "ChatTemplate",
    "Fit",
    "Forged",
    "Habits",
    "Leaf",
    "LeafSpan",
    "LiteralText",
    "Nulls",
    "Part",
    "Rendered",
    "Setting",
    "TextPiece",
    "Turn",
    "TurnFit",
    "encode_literally",
    "habits_of",
    "load_template",
    "prompt_for_step",
    "render",
    "render_text",
    "shared_text",
    "suited",
    "turn_spans",
]
