"""Drift causes against planted ones: `python bench/causes.py [TOKENIZER...]`.

Each cause is planted into conversations with several tokenizers, by doing to the text or the ids
what the cause does. Printed is what was told for what was planted. A wrong cause ends with exit 1;
`UNEXPLAINED` does not. Edits that have no cause are planted too, and must stay without one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs by its path, too

from bench.text_plants import TEXT_PLANTERS
from bench.turn_plants import TURN_PLANTERS
from bench.world import FRAMES, REAL, SMOLLM2, Plant, World, world_of

from trajkit.drift.causes import UNEXPLAINED, cause_of
from trajkit.drift.difference import Difference, differences
from trajkit.drift.findings import DriftKind, Route
from trajkit.records import ids_array
from trajkit.tokenizer import Tokenizer, load_tokenizer

PLANTERS = (*TEXT_PLANTERS, *TURN_PLANTERS)


def told(plant: Plant, tokenizer: Tokenizer) -> Iterator[tuple[str, Difference]]:
    """Yield what is told of each difference of a plant, on each of its routes."""
    parts = list(
        differences(
            ids_array(plant.recorded),
            ids_array(plant.other),
            tokenizer,
            route=Route.PAIR,
            action=plant.actions,
            facts=plant.facts,
        )
    )
    for route in plant.routes:
        for part in parts:
            mine = part.recorded
            if mine.start == len(mine.ids) and plant.cause not in ("eos-added", UNEXPLAINED):
                continue  # the other list goes on: no difference to a prefix
            if route == "chain":
                yield _told(replace(part, route=Route.CHAIN, kind=DriftKind.PREFIX))
                break
            yield _told(replace(part, route=Route(route)))


def _told(difference: Difference) -> tuple[str, Difference]:
    return cause_of(difference)[0], difference


def confusion(world: World) -> tuple[Counter[tuple[str, str]], list[tuple[str, str, Difference]]]:
    """Return how often each cause was told for each one planted, and the wrong ones."""
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    for planter in PLANTERS:
        for plant in planter(world):
            for cause, difference in told(plant, world.tokenizer):
                counts[plant.cause, cause] += 1
                if cause not in (plant.cause, UNEXPLAINED):
                    wrong.append((plant.cause, cause, difference))
    return counts, wrong


def main(names: list[str]) -> int:
    """Print the matrix of all tokenizers; return 1 when a cause is wrong."""
    total: Counter[tuple[str, str]] = Counter()
    n_wrong = 0
    for name in names or list(FRAMES):
        tokenizer = load_tokenizer(SMOLLM2 if name == "smollm2" else REAL / name)
        counts, wrong = confusion(world_of(tokenizer, name))
        total += counts
        n_wrong += len(wrong)
        n_right = sum(n for (planted, cause), n in counts.items() if planted == cause)
        print(f"{name}: {sum(counts.values())} planted, {n_right} told right, {len(wrong)} wrong")
        for planted, cause, difference in wrong:
            mine, theirs = difference.recorded.data[:90], difference.other.data[:90]
            print(f"  {difference.route}: {planted} told as {cause}: {mine!r} / {theirs!r}")
    print(f"\n{'planted':<30} told")
    for planted in dict.fromkeys(planted for planted, _ in sorted(total)):
        row = {cause: n for (p, cause), n in total.items() if p == planted}
        print(f"{planted:<30} " + ", ".join(f"{cause} {n}" for cause, n in sorted(row.items())))
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
