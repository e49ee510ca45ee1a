"""Every loss there is, by name: the papers' own, then `system@version/mode`.

A system's constants and means are read off its code at the commit named. Presets take what they
cannot change from the data: which steps were dropped, and what was clipped or shaped before.
"""

from __future__ import annotations

from trajkit.rl.papers import JOINT, LOSSES
from trajkit.rl.spec import Loss
from trajkit.rl.systems import SYSTEMS

__all__ = ["JOINT", "LOSSES", "PRESETS", "SYSTEMS"]

PRESETS: dict[str, Loss] = {**LOSSES, **JOINT, **SYSTEMS}
