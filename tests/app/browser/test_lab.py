"""The Memory lab in a browser: what is edited is answered again, by mouse and by keyboard."""

import pytest
from helpers.browser import new_context

LAB = "document.querySelector('#lab .lab').lab"


@pytest.fixture(scope="module")
def lab(browser, server):
    context = new_context(browser, viewport={"width": 1100, "height": 900})
    tab = context.new_page()
    problems = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda r: server.url in r.url or problems.append(r.url))
    tab.goto(server.url)
    tab.get_by_role("tab", name="Memory lab").click()
    solved(tab)
    yield tab
    context.close()
    assert not [problem for problem in problems if not problem.startswith(("data:", "blob:"))]


def solved(tab):
    tab.wait_for_function(f"{LAB}?.solved && !{LAB}.asking")
    return tab.evaluate(f"({{cells: {LAB}.cells, position: {LAB}.position, ...{LAB}.solved}})")


def digit(tab, place):
    return tab.locator(f"#lab td[data-position='{place}'] button")


def test_fixed_transitions_fail_after_a_long_span_and_the_others_do_not(lab):
    shown = solved(lab)
    assert len(shown["cells"]) == 48
    free, fixed = shown["answers"]
    assert free == shown["right"]
    wrong = [i for i, answer in enumerate(fixed) if answer != shown["right"][i]]
    assert len(wrong) >= 4
    assert min(wrong) > 30
    assert lab.locator("#lab .score").all_inner_texts() == [
        "48 of 48 right here",
        f"{48 - len(wrong)} of 48 right here",
    ]
    marks = lab.locator("#lab td.wrong")  # and not by colour alone
    assert marks.count() == len(wrong)
    assert marks.first.get_attribute("data-mark") == "✗"
    assert marks.first.get_attribute("aria-label") == f"{fixed[wrong[0]]}, wrong"
    assert "Fixed: 4, wrong" in lab.locator("#lab .status").inner_text()


def test_a_click_makes_a_reset_and_another_gives_the_digit_back(lab):
    before = solved(lab)
    digit(lab, 40).click()
    changed = solved(lab)
    assert changed["cells"][40] == 5
    assert changed["right"][40] == 0
    assert changed["answers"][0] == changed["right"]
    assert digit(lab, 40).get_attribute("aria-label") == "position 41: reset"
    assert lab.locator("#lab .status").inner_text().startswith("Position 41, a reset")
    digit(lab, 40).click()
    assert solved(lab)["cells"] == before["cells"]


def test_an_answer_is_looked_at_with_what_is_held_there(lab):
    lab.locator("#lab td.answer[data-position='9']").first.click()
    assert solved(lab)["position"] == 9
    held = "(model) => [...document.querySelectorAll('#lab td.held')].filter(e => "
    held += "e.closest('table').rows[2 + 2 * model] === e.parentElement)"
    strengths = [
        lab.evaluate(f"m => ({held})(m).map(e => Number(e.style.getPropertyValue('--left')))", m)
        for m in (0, 1)
    ]
    for row in strengths:
        assert max(row[:10]) == 1
        assert not any(row[10:])
    assert max(strengths[0][:5]) < 0.8 * max(strengths[1][:5])  # from before the reset at 5
    said = lab.locator("#lab .status").inner_text()
    assert "4 since the reset" in said
    assert "in data-controlled" in said


def test_the_keyboard_moves_writes_and_changes_the_length(lab):
    lab.locator("#lab td.answer[data-position='9']").first.click()
    before = solved(lab)["cells"]
    for key in ("ArrowRight", "3", "r", "Insert", "ArrowLeft", "Delete"):
        lab.keyboard.press(key)
    shown = solved(lab)
    # 10: written, then 11 was made a reset, a 0 inserted after it and 10 deleted
    assert shown["cells"] == [*before[:10], 5, 0, *before[12:]]
    assert shown["position"] == 10
    assert lab.evaluate("document.activeElement.ariaLabel") == "position 11: reset"
    assert lab.locator("#lab td button[tabindex='0']").count() == 1
    lab.keyboard.press("Home")
    assert solved(lab)["position"] == 0
    alone = f"since the start: {before[0]}, modulo 5 that is {before[0]}."
    assert alone in lab.locator("#lab .status").inner_text()
    lab.keyboard.press("End")
    assert solved(lab)["position"] == 47


def test_examples_and_keys_for_fingers(lab):
    lab.get_by_role("button", name="Many resets").click()
    shown = solved(lab)
    assert shown["cells"].count(5) == 5
    assert shown["answers"][0] == shown["right"]
    lab.get_by_role("group", name="Write into").get_by_role("button", name="Reset").click()
    assert solved(lab)["cells"][-1] == 5
    lab.get_by_role("button", name="Delete the cell").click()
    assert len(solved(lab)["cells"]) == len(shown["cells"]) - 1


def test_the_server_says_in_one_line_what_it_cannot_read(lab):
    answers = lab.evaluate(
        f"Promise.all([[], ['<img src=x>'], {{}}, Array(65).fill(1), [7]].map({LAB}.server.solve))"
    )
    assert all(answer["error"].startswith("cells: expected ") for answer in answers)
    lab.evaluate(f"{LAB}.show(['<img src=x onerror=alert(1)>'])")
    lab.wait_for_function("document.querySelector('#lab .status').textContent.startsWith('cells:')")
    assert lab.locator("#lab img").count() == 0
    lab.evaluate(f"{LAB}.show([1, 5, 2])")
    assert solved(lab)["right"] == [1, 0, 2]


def test_a_phone_has_all_of_it_within_its_width(lab):
    lab.evaluate(f"{LAB}.show(Array(64).fill(1))")
    solved(lab)
    lab.set_viewport_size({"width": 360, "height": 780})
    lab.wait_for_function("document.querySelectorAll('#lab .lines table').length > 5")
    for name in (".lines table", ".bar button", ".card"):
        edges = lab.locator(f"#lab {name}").evaluate_all(
            "all => all.map(e => e.getBoundingClientRect().right)"
        )
        assert max(edges) <= 360
    lab.set_viewport_size({"width": 1100, "height": 900})
    lab.wait_for_function("document.querySelectorAll('#lab .lines table').length < 5")
