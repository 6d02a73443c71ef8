"""The texts that the page offers to try."""

from mlx_gateloop.app.page.examples import CHAT_EXAMPLES, TEXT_EXAMPLES

from benchmarks.embedded_models.corpus import questions


def test_texts_are_beginnings_from_files_that_code_has_not_read(unread):
    for text in TEXT_EXAMPLES.values():
        (file,) = (file for file in unread if text in file)
        assert len(file.partition(text)[2]) > 100  # something to go on with


def test_questions_are_about_entries_that_the_models_know():
    known = {question.split("`")[1] for question, _ in questions()}
    asked = [example.split("`") for example in CHAT_EXAMPLES]
    names = [parts[1] if len(parts) > 1 else parts[0].split()[-1].rstrip("?") for parts in asked]
    assert {*names} <= known
