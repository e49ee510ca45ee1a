"""The scoring room: what a checkpoint says about recorded ids. The only room that imports torch."""

from __future__ import annotations

from importlib.util import find_spec

from trajkit.errors import UsageProblem

_NEEDS = ("torch", "transformers", "safetensors")


def require_torch() -> None:
    """Return nothing when the optional part is installed; imports none of it.

    Raises:
        UsageProblem: U105 naming what is missing.
    """
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise UsageProblem(
            "U105",
            f"scoring needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            "not installed",
            hint="pip install 'trajkit[score]'",
        )
