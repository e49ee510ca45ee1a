"""Route `profile`: what a tokenizer and a chat template will do, told without any data.

    traits.py      what can be told, whether it is a risk, and what follows from it
    vocabulary.py  ids that text never gives, and control tokens that text forges
    pipeline.py    texts that do not come back as they were
    joins.py       tokens that straddle the end of an action, by tag profile
    shapes.py      the small conversations a template is asked about
    turns.py       each turn of them: is it written as it was sampled, and kept so
    writing.py     what a template does with single things: clock, system prompt, arguments, null
    report.py      all of it → `Profile`
    text.py        the risks of data that hold text alone

Everything is measured by encoding and rendering; a configuration is only shown beside.
"""

from trajkit.drift.profile.report import Profile, profile
from trajkit.drift.profile.text import markups_of, text_risks
from trajkit.drift.profile.traits import Fact, Grade, Trait

__all__ = ["Fact", "Grade", "Profile", "Trait", "markups_of", "profile", "text_risks"]
