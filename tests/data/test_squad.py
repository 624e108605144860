"""Questions about passages: SQuAD's form, every fault with its path, answers in their places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regard.config.data import ReadConfig
from regard.data.squad import SquadExample, SquadExamples, hold_out_questions, read_squad
from regard.errors import DataError, UsageError

PASSAGE = "Ada met Alan in London."


def document(*questions: Any, passage: Any = PASSAGE) -> dict[str, Any]:
    return {"data": [{"paragraphs": [{"context": passage, "qas": list(questions)}]}]}


def asked(text: str = "Ada", start: Any = 0, **more: Any) -> dict[str, Any]:
    return {"id": "1", "question": "Who?", "answers": [{"text": text, "answer_start": start}], **more}


def read(tmp_path: Path, content: Any, **settings: Any) -> SquadExamples:
    (tmp_path / "x.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return read_squad([tmp_path / "x.json"], ReadConfig(**settings))


def test_questions_are_read_with_and_without_answers(tmp_path: Path) -> None:
    found = read(tmp_path, document(asked(), asked("London", 16), asked(is_impossible=True, answers=[])))
    assert [one.texts for one in found.examples] == [("Ada",), ("London",), ("",)]
    assert found.num_unanswerable == 1
    assert found.examples[1].location.endswith("x.json:data[0].paragraphs[0].qas[1]")


QAS = "data[0].paragraphs[0].qas[0]"


@pytest.mark.parametrize(
    ("content", "place", "what"),
    [
        ("{", ":1:2", "not JSON"),
        ([], ":the document", "an object is expected"),
        ({}, ":the document", "no field 'data'"),
        ({"data": {}}, ":data", "a list is expected"),
        ({"data": [{}]}, ":data[0]", "no field 'paragraphs'"),
        (document(passage=3), ":data[0].paragraphs[0].context", "a text is expected"),
        (document({"answers": []}), f":{QAS}", "no field 'question'"),
        (document(asked(start="0")), f":{QAS}.answers[0].answer_start", "a whole number is expected"),
        (document(asked(start=True)), f":{QAS}.answers[0].answer_start", "a whole number is expected"),
        (document(asked(start=1)), f":{QAS}.answers[0].answer_start", "does not stand at 1: 'da '"),
        (document(asked(start=-3)), f":{QAS}.answers[0].answer_start", "does not stand at -3"),
        (document(asked(answers=[])), f":{QAS}.answers", "no answer"),
        (document(asked(), passage=" "), f":{QAS}: its context", "blank"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(tmp_path: Path, content: Any, place: str, what: str) -> None:
    with pytest.raises(DataError, match=what) as error:
        read(tmp_path, content)
    assert error.value.location == str(tmp_path / "x.json") + place


def test_answers_out_of_place_are_counted_and_listed(tmp_path: Path) -> None:
    content = document(asked(), asked(start=2), asked(start=4))
    with pytest.raises(DataError, match="2 of 3 rows rejected: 2 × answer not in its place"):
        read(tmp_path, content)
    found = read(tmp_path, content, lenient=True, max_reject=80.0)
    assert (len(found), found.rejected) == (1, 2)
    assert len(Path(found.reject_file).read_text().splitlines()) == 2


def test_whole_passages_are_held_out() -> None:
    rows = SquadExamples.of([SquadExample("who", f"passage {number % 20}", ((0, "passage"),)) for number in range(60)])
    kept, held = hold_out_questions(rows)
    assert (len(kept), len(held)) == (54, 6)
    assert not {one.passage for one in kept.examples} & {one.passage for one in held.examples}
    with pytest.raises(UsageError, match="too few"):
        hold_out_questions(SquadExamples.of([SquadExample("who", "a", ((0, "a"),))] * 9))
