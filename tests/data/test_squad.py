"""Questions about passages: SQuAD format, every fault with its path, answers at their start."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from regard.config.data import ReadConfig
from regard.data.lines import read_bounded
from regard.data.squad import SquadExample, SquadExamples, hold_out_questions, read_squad
from regard.errors import DataError, UsageError

PASSAGE = "Ada met Alan in London."


def document(*questions: Any, passage: Any = PASSAGE) -> dict[str, Any]:
    return {"data": [{"paragraphs": [{"context": passage, "qas": list(questions)}]}]}


def question(text: str = "Ada", start: Any = 0, **more: Any) -> dict[str, Any]:
    return {"id": "1", "question": "Who?", "answers": [{"text": text, "answer_start": start}], **more}


def read(tmp_path: Path, content: Any, **settings: Any) -> SquadExamples:
    (tmp_path / "x.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return read_squad([tmp_path / "x.json"], ReadConfig(**settings))


def test_questions_are_read_with_and_without_answers(tmp_path: Path) -> None:
    squad = read(tmp_path, document(question(), question("London", 16), question(is_impossible=True, answers=[])))
    assert [example.texts for example in squad.examples] == [("Ada",), ("London",), ("",)]
    assert squad.num_unanswerable == 1
    assert squad.examples[1].location.endswith("x.json:data[0].paragraphs[0].qas[1]")


QUESTION_PATH = "data[0].paragraphs[0].qas[0]"


@pytest.mark.parametrize(
    ("content", "path", "what"),
    [
        ("{", ":1:2", "not JSON"),
        (
            document({**question(), "question": "who\ud800?"}),
            f":{QUESTION_PATH}.question",
            "ud800'. at character 4",
        ),
        (document(question(), passage=PASSAGE + "\udc00"), ":data[0].paragraphs[0].context", "a lone surrogate"),
        (document({**question(), "id": "\ud800"}), f":{QUESTION_PATH}.id", "a lone surrogate"),
        ([], ":the document", "an object is expected"),
        ({}, ":the document", "no field 'data'"),
        ({"data": {}}, ":data", "a list is expected"),
        ({"data": [{}]}, ":data[0]", "no field 'paragraphs'"),
        (document(passage=3), ":data[0].paragraphs[0].context", "a text is expected"),
        (document({"answers": []}), f":{QUESTION_PATH}", "no field 'question'"),
        (document(question(start="0")), f":{QUESTION_PATH}.answers[0].answer_start", "an integer is expected"),
        (document(question(start=True)), f":{QUESTION_PATH}.answers[0].answer_start", "an integer is expected"),
        (document(question(start=1)), f":{QUESTION_PATH}.answers[0].answer_start", "is not at 1: 'da '"),
        (document(question(start=-3)), f":{QUESTION_PATH}.answers[0].answer_start", "is not at -3"),
        (document(question(answers=[])), f":{QUESTION_PATH}.answers", "no answer"),
        (document(question(), passage=" "), f":{QUESTION_PATH}: its context", "blank"),
    ],
)
def test_faults_are_reported_with_their_path(tmp_path: Path, content: Any, path: str, what: str) -> None:
    with pytest.raises(DataError, match=what) as error:
        read(tmp_path, content)
    assert error.value.location == str(tmp_path / "x.json") + path


def test_a_small_file_reserves_little_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        assert len(read(tmp_path, document(question()))) == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 24
    with pytest.raises(DataError, match=r"longer than 99 bytes — split it"):
        read_bounded(io.BytesIO(bytes(100)), "x.json", 99)
    assert read_bounded(io.BytesIO(bytes(3 << 20)), "x.json", 3 << 20) == bytes(3 << 20)


def test_answers_with_a_wrong_start_are_counted_and_listed(tmp_path: Path) -> None:
    content = document(question(), question(start=2), question(start=4))
    with pytest.raises(DataError, match="2 of 3 rows rejected: 2 × wrong answer_start"):
        read(tmp_path, content)
    squad = read(tmp_path, content, lenient=True, max_reject=80.0)
    assert (len(squad), squad.num_rejected) == (1, 2)
    assert len(Path(squad.reject_file).read_text().splitlines()) == 2


def test_whole_passages_are_held_out() -> None:
    rows = SquadExamples.from_examples(
        [SquadExample("who", f"passage {index % 20}", ((0, "passage"),)) for index in range(60)]
    )
    train, valid = hold_out_questions(rows)
    assert (len(train), len(valid)) == (54, 6)
    assert not {example.passage for example in train.examples} & {example.passage for example in valid.examples}
    with pytest.raises(UsageError, match="too few"):
        hold_out_questions(SquadExamples.from_examples([SquadExample("who", "a", ((0, "a"),))] * 9))
