import xml.etree.ElementTree as ET
from dataclasses import replace

from tests.builders import make_step, make_trajectory
from tests.view_builders import TOKENIZER, agent_trajectory, encoded, unmarked
from trajkit.records import Trajectory
from trajkit.store.findings import StepFinding
from trajkit.view.beneath import with_beneath
from trajkit.view.drift import with_drift
from trajkit.view.folding import width_of
from trajkit.view.model import Line, rows, view_of
from trajkit.view.svg import svg_of

NAME = "{http://www.w3.org/2000/svg}"


def drawn(*trajectories, width=100):
    """Return the root of a drawing."""
    found = [(t.trajectory_id, unmarked(rows(view_of(t), TOKENIZER))) for t in trajectories]
    return ET.fromstring(svg_of(found, width))


def texts(root, look):
    """Return the text of each row that has elements of a look, what is only drawn left out."""
    found = []
    for row in root.findall(f"{NAME}g")[:-1]:
        parts = [
            text.text
            for text in row.findall(f"{NAME}text")
            if look in text.get("class").split() and "small" not in text.get("class")
        ]
        if parts:
            found.append("".join(parts))
    return found


def test_text_stays_text_on_its_side():
    root = drawn(agent_trajectory(), width=400)
    lines = [row for row in rows(view_of(agent_trajectory()), TOKENIZER) if isinstance(row, Line)]
    for look, side in (("action", True), ("context", False)):
        assert texts(root, look) == [line.text for line in lines if line.is_action is side]


def test_an_action_has_a_bar_and_not_only_a_colour():
    root = drawn(agent_trajectory())
    for row in root.findall(f"{NAME}g")[:-1]:
        looks = {element.get("class").split()[0] for element in row}
        assert ("bar" in looks) == ("action" in looks)


def test_every_run_says_how_long_it_is():
    root = drawn(agent_trajectory())
    runs = [text for text in root.iter(f"{NAME}text") if text.get("textLength")]
    assert len(runs) > 50
    for run in runs:
        if "small" not in run.get("class"):
            assert abs(float(run.get("textLength")) - 7.8 * width_of(run.text)) < 0.01


def test_a_drawing_loads_nothing_and_is_ascii():
    text = svg_of([("t", unmarked(rows(view_of(agent_trajectory()), TOKENIZER)))], 80)
    assert text.isascii()
    assert "href" not in text
    assert text.count("http") == 1  # the name of the namespace
    assert "url(" not in text


def test_controls_are_drawn_and_their_signs_are_there_unseen():
    step = make_step(prompt_delta=encoded("a\x1b\tb\n"), action_tokens=[])
    (row,) = drawn(Trajectory(trajectory_id="t", steps=(step,))).findall(f"{NAME}g")[1:-1]
    unseen = [e.text for e in row if "unseen" in (e.get("class") or "")]
    assert unseen == ["␛", "␉", "␊"]
    assert [e.text for e in row if "small" in (e.get("class") or "")] == ["ESC"]
    assert len(row.findall(f"{NAME}path")) == 2


def test_several_trajectories_stand_under_their_names():
    first, second = (
        Trajectory(trajectory_id=name, steps=(make_step(trajectory_id=name, action_text="x"),))
        for name in ("<one>", "two")
    )
    assert texts(drawn(first, second), "rule") == [
        *("<one>", "step 0 · no ids · terminal"),
        *("two", "step 0 · no ids · terminal"),
    ]
    assert texts(drawn(first), "rule") == ["step 0 · no ids · terminal"]


def test_long_lines_are_folded_at_the_width():
    step = make_step(action_text="word " * 100)
    root = drawn(Trajectory(trajectory_id="t", steps=(step,)), width=60)
    assert len(texts(root, "action")) > 5
    assert max(map(len, texts(root, "action"))) <= 50


def test_other_ids_are_underlined_at_their_cells_and_told():
    action = encoded("ab東cd")
    trajectory = make_trajectory([(encoded("q\n"), action)])
    found = StepFinding(
        step_index=0,
        route="ids",
        kind="ids-only",
        cause="non-canonical-sampling",
        token_start=2 + 1,
        n_tokens=1,
        recorded_ids=(action[1],),
        retokenized_ids=(300,),
        retokenized_text="<b>",
    )
    view = with_drift(view_of(trajectory), [found])
    marked = list(with_beneath(view, rows(view, TOKENIZER), TOKENIZER))
    text = svg_of([("t", marked)], 80)
    (bar, legend) = (e for e in ET.fromstring(text).iter() if e.get("class") == "drift")
    # two cells behind `ab`: the whole of the character whose first bytes the id holds
    assert (bar.tag, bar.get("x"), bar.get("width")) == (f"{NAME}rect", "91.6", "15.6")
    assert legend.get("width") == "15.6"
    assert "ids-only \u00b7 non-canonical-sampling \u00b7 other text &lt;b&gt;" in "".join(
        ET.tostring(e, encoding="unicode", method="xml")
        for e in ET.fromstring(text).iter()
        if e.get("class") == "told"
    )
    missing = replace(found, n_tokens=0, recorded_ids=())
    view = with_drift(view_of(trajectory), [missing])
    drawing = ET.fromstring(
        svg_of([("t", [*with_beneath(view, rows(view, TOKENIZER), TOKENIZER)])], 80)
    )
    assert next(e.tag for e in drawing.iter() if e.get("class") == "drift") == f"{NAME}path"
