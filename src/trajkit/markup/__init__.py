"""Tags in flat text: which there are, who writes them, and whose text is whose.

    profiles.py   what a `Markup` is, and the table `MARKUPS`
    load.py       a name or a TOML file → `Markup`
    marks.py      a markup → the places in a text where its marks stand
    scan.py       marks → pieces of text, each with a kind and a writer
    numbers.py    labels that count → where the prompt ends
    observe.py    how far the environment's text goes
    flat.py       pieces → prompt, actions, observations: `parse`, `split`
    choose.py     a text → the profile that fits

Tags count only where the policy or the environment can have written them as tags: examples inside
the prompt and tags inside an observation are text. Where the structure does not tell who wrote a
piece of text, that is an error and not a guess.
"""

from trajkit.markup.choose import choose, foreign_reply
from trajkit.markup.flat import FlatStep, FlatTrajectory, parse, split
from trajkit.markup.load import load_markup
from trajkit.markup.profiles import MARKUPS, Markup, Side, Tag, Turns
from trajkit.markup.scan import Piece

__all__ = [
    "MARKUPS",
    "FlatStep",
    "FlatTrajectory",
    "Markup",
    "Piece",
    "Side",
    "Tag",
    "Turns",
    "choose",
    "foreign_reply",
    "load_markup",
    "parse",
    "split",
]
