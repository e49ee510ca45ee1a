"""The tables in the documentation and the literals in the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

import trajkit
from trajkit.cli.pages import FINDINGS, PAGES
from trajkit.drift.causes import DRIFT_CAUSES
from trajkit.drift.findings import UNEXPLAINED, DriftKind
from trajkit.errors import ERROR_CODES, ExitCode
from trajkit.masks.rules import MASK_RULES
from trajkit.rl.presets import LOSSES, PRESETS
from trajkit.training import TRAIN_POLICIES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MASKS = (ROOT / "docs/masks.md").read_text()
SCORES = (ROOT / "docs/scores.md").read_text()
SRC = ROOT / "src" / "trajkit"


def test_every_error_code_has_its_row_with_the_same_words():
    rows = dict(
        re.findall(r"^\| ([A-Z]\d+) \| (.+) \|$", (ROOT / "docs/codes.md").read_text(), re.M)
    )
    assert rows == ERROR_CODES


def test_every_drift_cause_has_its_row_with_the_same_words_in_order():
    section = (ROOT / "docs/codes.md").read_text().split("## Drift causes")[1]
    section = section.split("\n## ")[0]
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.+) \|$", section, re.M)
    assert rows == [(cause.name, cause.what) for cause in DRIFT_CAUSES]


def test_every_mask_rule_has_its_row_with_its_severity_and_the_same_words_in_order():
    section = (ROOT / "docs/codes.md").read_text().split("## Mask rules")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.+) \|$", section, re.M)
    assert rows == [(rule.code, rule.severity.value, rule.text.title) for rule in MASK_RULES]


def test_the_guide_names_every_mask_rule_and_no_other():
    section = MASKS.split("| rules about | are |")[1].split("\n\n")[0]
    assert sorted(re.findall(r"`([a-z-]+)`", section)) == sorted(rule.code for rule in MASK_RULES)


def test_every_policy_of_training_has_its_row_with_its_sentence():
    section = MASKS.split("| `--train` | counts |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", section, re.M)
    assert rows == [(policy.name, policy.meaning) for policy in TRAIN_POLICIES]


def test_every_exit_code_has_its_row():
    told = re.findall(r"^\| ([\d, ]+) \| ", README, re.M)
    codes = {int(code) for row in told for code in row.split(",")}
    assert codes == {code.value for code in ExitCode}


def test_every_loss_has_its_row_in_order():
    section = SCORES.split("| loss | formula |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == list(LOSSES)


def test_every_preset_has_its_row_with_its_formula_and_source():
    text = (ROOT / "docs/losses.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \| (.+) \| (.+) \|$", text, re.M)
    assert rows == [(name, loss.formula, loss.source) for name, loss in PRESETS.items()]


def test_the_tree_in_the_readme_is_the_tree():
    told = set(re.findall(r"^[├└]── ([\w.]+)/?", README, re.M))
    there = {path.name for path in SRC.iterdir() if not path.name.startswith(("_", "py."))}
    assert told == there


def test_links_in_the_documentation_lead_somewhere_and_the_readme_to_every_guide():
    guides = sorted((ROOT / "docs").glob("*.md"))
    for page in [ROOT / "README.md", *guides]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), (page.name, link)
    assert {f"docs/{page.name}" for page in guides} <= set(re.findall(r"\]\(([^)#]+)\)", README))


def test_every_error_code_and_drift_kind_has_a_page():
    findings = {kind.value for kind in DriftKind} | {UNEXPLAINED}
    assert set(PAGES) == set(ERROR_CODES) | findings
    assert set(FINDINGS) == findings
    for page in PAGES.values():
        assert page.why.endswith(".")
        assert page.fix


def test_the_python_in_the_readme_names_what_there_is():
    (block,) = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    compile(block, "README.md", "exec")
    named = set(re.findall(r"\btrajkit\.(\w+)\(", block))
    assert named >= {"ingest", "drift_check", "mask_check", "mask_view", "score"}
    assert named <= set(trajkit.__all__)
    assert set(re.findall(r"\bstep\.(\w+)", block)) <= set(dir(trajkit.Step))
