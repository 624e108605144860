"""Stories with questions: everything is read with its location, and every fault has one."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from regard.config.data import ReadConfig
from regard.data.babi import (
    StoryQuestion,
    StoryQuestions,
    check_same_language,
    held_out_questions,
    hold_out_stories,
    normalize_answer,
    read_stories,
    read_story,
    story_words,
    task_name,
)
from regard.errors import DataError, UsageError

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "babi"
TWO_STORIES = """1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Mary got the milk.
5 What is Mary carrying?\tmilk,Apple\t4 1
1 Sandra slept.
2 Who slept?\tSandra\t1
"""


def write(folder: Path, text: str, name: str = "qa1_facts_train.txt") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def read_error(folder: Path, text: str, config: ReadConfig | None = None) -> str:
    """Message of the error that reading a text raises."""
    with pytest.raises(DataError) as caught:
        read_stories([write(folder, text)], config)
    return str(caught.value)


@pytest.mark.parametrize("name", ["qa1_facts_train.txt", "qa1_facts_test.txt.gz"])
def test_questions_come_with_the_sentences_before_them(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, TWO_STORIES, name)
    stories = read_stories([path])
    sentences = ("Mary moved to the bathroom.", "John went to the hallway.")
    assert stories.questions == [
        StoryQuestion("qa1_facts", sentences, "Where is Mary?", "bathroom", (0,), f"{path}:3"),
        StoryQuestion(
            "qa1_facts", (*sentences, "Mary got the milk."), "What is Mary carrying?", "milk,apple", (2, 0), f"{path}:5"
        ),
        StoryQuestion("qa1_facts", ("Sandra slept.",), "Who slept?", "sandra", (0,), f"{path}:7"),
    ]
    assert (stories.num_read, stories.num_rejected, stories.tasks, stories.file_names) == (
        2,
        0,
        ["qa1_facts"],
        (str(path),),
    )


def test_questions_know_which_are_about_one_story(tmp_path: Path) -> None:
    path = write(tmp_path, TWO_STORIES)
    stories = read_stories([path]).stories
    assert stories == [f"{path}:1", f"{path}:1", f"{path}:6"]
    assert read_stories([path]).select([2, 0]).stories == [stories[2], stories[0]]
    question = StoryQuestion("", ("Mary went home.",), "Where is Mary?", "home")
    assert len(set(StoryQuestions.from_questions([question, question]).stories)) == 2


def test_line_endings_and_a_missing_last_one_change_nothing(tmp_path: Path) -> None:
    plain = read_stories([write(tmp_path, TWO_STORIES)])
    windows_style = read_stories([write(tmp_path, "\ufeff" + TWO_STORIES.rstrip("\n").replace("\n", "\r\n"))])
    assert windows_style.questions == plain.questions
    assert windows_style.digest == plain.digest


def test_several_files_are_several_tasks(tmp_path: Path) -> None:
    paths = [write(tmp_path, TWO_STORIES), write(tmp_path, TWO_STORIES, "qa2_more_train.txt")]
    stories = read_stories(paths)
    assert stories.tasks == ["qa1_facts", "qa2_more"]
    assert len(stories) == 6
    selected = stories.select([4, 0])
    assert [question.location for question in selected.questions] == [f"{paths[1]}:5", f"{paths[0]}:3"]
    assert selected.digest not in (stories.digest, stories.select([0, 4]).digest)


@pytest.mark.parametrize(
    ("text", "location", "what"),
    [
        ("1 Mary slept.\n2 John slept.\n", ":1:", "the story of 2 lines has no question"),
        (TWO_STORIES + "1 Mary slept.\n", ":8:", "the story of 1 lines has no question"),
        ("1 Who slept?\tMary\t1\n", ":1:", "the question precedes all sentences"),
        ("1 Mary slept.\n2 Who slept?\n", ":2:", "the question has no answer"),
        ("1 Mary slept.\n2 Who slept?\t\t1\n", ":2:", "the question has no answer"),
        ("1 Mary slept.\n2 Who slept?\tMary,,John\t1\n", ":2:", "'Mary,,John' has an empty entry"),
        ("1 Mary slept.\n2 Who slept?\tMary\t1\t2\n", ":2:", "3 tabs"),
        ("1 Mary slept.\n2 ?\tMary\t1\n", ":2:", "the question has no words"),
        ("1 ...\n2 Who slept?\tMary\t1\n", ":1:", "the sentence has no words"),
        ("1 Mary slept.\n3 Who slept?\tMary\t1\n", ":2:", "number 3 where the story has 2"),
        ("2 Mary slept.\n3 Who slept?\tMary\t1\n", ":1:", "number 2 where the story has 1"),
        ("Mary slept.\n2 Who slept?\tMary\t1\n", ":1:", "begins with 'Mary', not with its number"),
        ("1 Mary slept.\n\n2 Who slept?\tMary\t1\n", ":2:", "the line is blank"),
        ("1 Mary slept.\n2 Who slept?\tMary\t2\n", ":2:", "'2' is no sentence before line 2"),
        (f"1 Mary slept.\n2 Who slept?\tMary\t{'0' * 17}19\n", ":2:", f"'{'0' * 17}19' is no sentence before line 2"),
        (TWO_STORIES + "1 Mary slept.\n2 Who slept?\tMary\tone\n", ":9:", "'one' is no sentence before line 2"),
        ("1 Mary slept.\n2 Who slept?\tMary\t1\n3 Who?\tMary\t2\n", ":3:", "'2' is no sentence before line 3"),
        ("1 Mary sle\0pt.\n2 Who slept?\tMary\t1\n", ":1:11:", "NUL"),
        ("", ":", "the file is empty"),
    ],
)
def test_faults_are_reported_with_their_location(tmp_path: Path, text: str, location: str, what: str) -> None:
    message = read_error(tmp_path, text)
    assert message.startswith(f"{tmp_path / 'qa1_facts_train.txt'}{location}")
    assert what in message


def test_lenient_reading_rejects_whole_stories_and_writes_them_to_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, TWO_STORIES + "1 Mary slept.\n" + TWO_STORIES)
    assert "1 of 5 rows rejected" in read_error(tmp_path, path.read_text())
    stories = read_stories([path], ReadConfig(lenient=True, max_reject=50))
    assert (len(stories), stories.num_read, stories.num_rejected) == (6, 5, 1)
    assert stories.fault_counts == {"no question": 1}
    assert [Path(file).name for file in stories.reject_files] == ["qa1_facts_train.txt.rejected.jsonl"]


def test_no_file_and_a_missing_file_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file of stories"):
        read_stories([])
    write(tmp_path, TWO_STORIES)
    with pytest.raises(DataError, match=r"no such file \(did you mean qa1_facts_train.txt\?\)"):
        read_stories([tmp_path / "qa1_fact_train.txt"])


def question(task: str, text: str, location: str = "") -> StoryQuestion:
    return StoryQuestion(task, (text,), text, answer="yes", location=location)


def test_tasks_trained_together_must_share_words() -> None:
    check_same_language(
        StoryQuestions.from_questions(
            [question("a", "Mary slept"), question("b", "John slept"), question("c", "John ate")]
        )
    )
    with pytest.raises(DataError, match=r"^c: shares none of its 2 words with any other of the 3 files"):
        check_same_language(
            StoryQuestions.from_questions(
                [question("a", "Mary slept"), question("b", "John slept"), question("c", "kuh muh")]
            )
        )


def test_two_versions_of_a_task_are_refused() -> None:
    english = question("qa1", "Mary went to the kitchen", "en/qa1_train.txt:1")
    hindi = question("qa1", "Mary kitchen mein gayi", "hn/qa1_train.txt:1")
    check_same_language(
        StoryQuestions.from_questions([english, question("qa1", "Mary went to the garden", "b/qa1_train.txt:1")])
    )
    with pytest.raises(DataError, match=r"^en/qa1_train.txt: is the same task as hn/qa1_train.txt in other words"):
        check_same_language(
            StoryQuestions.from_questions([question("qa1", "she went to the far kitchen", "en/qa1_train.txt:1"), hindi])
        )


def test_stories_are_held_out_whole_and_the_same_ones_for_every_run(tmp_path: Path) -> None:
    lines = []
    for number in range(30):
        for line in range(1, 6):
            lines.append(f"{2 * line - 1} Mary{number} went to the room{line}.")
            lines.append(f"{2 * line} Where is Mary{number}?\troom{line}\t{2 * line - 1}")
    stories = read_stories([write(tmp_path, "".join(f"{line}\n" for line in lines))])
    train, held_out = hold_out_stories(stories, 0.1)
    assert (len(train), len(held_out)) == (135, 15)
    first_sentences = [{question.sentences[0] for question in part.questions} for part in (train, held_out)]
    assert [*map(len, first_sentences)] == [27, 3]
    assert not first_sentences[0] & first_sentences[1]
    assert hold_out_stories(stories, 0.1)[1] == held_out
    assert held_out_questions(stories, 0.1).sum() == 15
    assert hold_out_stories(stories, 0) == hold_out_stories(stories, 0.03) == (stories, stories)
    same = read_stories([write(tmp_path, "1 Mary slept.\n2 Who slept?\tMary\t1\n" * 20)])
    assert held_out_questions(same, 0.1).sum() == 2


def test_names_words_and_answers_are_normalized() -> None:
    assert task_name("x/qa19_path-finding_test.txt.gz") == "qa19_path-finding"
    assert task_name("train.txt") == "train"
    assert story_words(' He said: "No, Mary\'s box!" ') == ["he", "said", "no", "mary's", "box"]
    assert normalize_answer(" N , s") == "n,s"


def test_the_published_files_are_read_without_a_fault() -> None:
    if not (DATA / "en").is_dir():
        pytest.skip("shared/data/babi is not there")
    paths = sorted((DATA / "en").glob("*_train.txt"))
    stories = read_stories(paths)
    assert (len(stories), len(stories.tasks)) == (1000 * len(paths), len(paths))
    assert all(question.support for question in stories.questions)
    assert max(len(question.sentences) for question in stories.questions) == 224
    check_same_language(stories)


def test_sentences_know_their_locations(tmp_path: Path) -> None:
    path = write(tmp_path, TWO_STORIES)
    second = read_stories([path]).questions[1]
    assert [second.sentence_location(index) for index in range(3)] == [f"{path}:{line}" for line in (1, 2, 4)]
    assert StoryQuestion("one", ("Mary slept.",), "Who slept?", location="a:2").sentence_location(0) == "a:2"


def test_a_story_is_plain_lines_or_numbered_ones_with_questions_among_them(tmp_path: Path) -> None:
    sentences = ("Mary moved to the bathroom.", "John went to the hallway.")
    plain = read_story(
        write(tmp_path, "\ufeff" + "\n\n".join([sentences[0], "Where is Mary?", "  " + sentences[1]]), "a.txt")
    )
    numbered = read_story(
        write(tmp_path, f"1 {sentences[0]}\n2 Where is Mary? \tBathroom\t1\n3 {sentences[1]}\n", "b.txt.gz")
    )
    assert plain.sentences == numbered.sentences == sentences
    assert plain.locations == (f"{tmp_path / 'a.txt'}:1", f"{tmp_path / 'a.txt'}:5")
    assert plain.questions == (StoryQuestion("", sentences[:1], "Where is Mary?", location=f"{tmp_path / 'a.txt'}:3"),)
    (answered,) = numbered.questions
    assert (answered.text, answered.answer) == ("Where is Mary?", "bathroom")
    assert answered.sentences == sentences[:1]
    question = plain.ask("Where is John?", "question 1")
    assert (question.sentences, question.location) == (sentences, "question 1")
    assert question.sentence_location(1) == plain.locations[1]
    years = read_story(write(tmp_path, "1984 was long ago.\n1 is a number.\n", "c.txt"))
    assert years.sentences == ("1984 was long ago.", "1 is a number.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.txt: the story is empty — write one sentence per line"),
        (" \n...\n", "s.txt: the story is empty"),
        ("Who slept?\n", "s.txt: the story is empty"),
        ("1 Mary slept.\n1 John slept.\n", "s.txt:2: a second story begins"),
        ("1 Mary slept.\n\n", "s.txt:2: the line is blank"),
        ("1 Mary slept.\n3 John slept.\n", "s.txt:2: the line has the number 3 where the story has 2"),
        ("Mary slept.\nJohn \x00slept.\n", "s.txt:2:6: NUL"),
    ],
)
def test_a_faulty_story_is_reported_with_its_location(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_story(write(tmp_path, text, "s.txt"))
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(message)
