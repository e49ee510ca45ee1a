import re

import pytest

from tests.builders import TINY
from tests.view_builders import TOKENIZER, agent_trajectory, message_trajectory, read_page
from trajkit.errors import InputError, UsageProblem
from trajkit.store.write import DatasetWriter, Provenance
from trajkit.view.html.whole import mask_page


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "steps.parquet"
    with DatasetWriter(file) as writer:
        writer.write(agent_trajectory())
        writer.write(message_trajectory())
        writer.provenance = Provenance(
            tokenizer_name="tiny", tokenizer_fingerprint=TOKENIZER.fingerprint
        )
    return file


def names(page):
    return [entry["name"] for entry in read_page(page).shared["index"]]


def test_a_page_is_one_call(data):
    assert names(mask_page(data, TINY)) == ["count-people/7", "text-only"]
    assert names(mask_page(str(data), TOKENIZER, only=["text-only"])) == ["text-only"]
    assert names(mask_page(data, limit=1)) == ["count-people/7"]


def test_steps_can_be_chosen(data):
    page = read_page(mask_page(data, TINY, limit=1, steps=lambda step: step == 3))
    assert [step[1] for step in page.trajectories[0]["steps"]] == [3]


def test_what_is_private_is_not_in_the_page(data):
    page = mask_page(data, TINY, redact=["Tokyo", re.compile("tool")])
    assert "Tokyo" not in str(read_page(page).shared["cells"]["text"])
    assert read_page(mask_page(data, no_text=True)).shared["ids"] == []


def test_a_tokenizer_that_is_another_is_refused(data, tmp_path):
    from tests.tokenizer_builders import metaspace, save

    with pytest.raises(InputError) as caught:
        mask_page(data, save(metaspace(prefix=True), tmp_path / "other"))
    assert caught.value.code == "T102"


def test_nothing_to_show_is_no_page(tmp_path):
    with DatasetWriter(tmp_path / "none.parquet"):
        pass
    with pytest.raises(UsageProblem) as caught:
        mask_page(tmp_path / "none.parquet")
    assert caught.value.code == "U107"
