"""The Memory lab in a browser: what is edited is answered again, by mouse and by keyboard."""

import pytest

pytestmark = pytest.mark.slow
LAB = "document.querySelector('#lab .lab').lab"
START = "002405334024102014344412314043132441213344444002"
STRENGTHS = """model => [...document.querySelectorAll('#lab td.held')]
  .filter(e => e.closest('table').rows[2 + 2 * model] === e.parentElement)
  .map(e => Number(e.style.getPropertyValue('--left')))"""


@pytest.fixture
def lab(tab):
    tab.defaults()
    tab.tab.get_by_role("tab", name="Memory lab").click()
    solved(tab.tab)
    tab.tab.evaluate(f"{LAB}.show({[*map(int, START)]})")
    solved(tab.tab)
    return tab.tab


def solved(tab):
    tab.wait_for_function(f"{LAB}?.solved")
    return tab.evaluate(f"({{cells: {LAB}.cells, position: {LAB}.position, ...{LAB}.solved}})")


def digit(tab, position):
    return tab.locator(f"#lab td[data-position='{position}'] button")


def status(tab):
    return tab.locator("#lab .status").inner_text()


def test_fixed_transitions_fail_after_a_long_span_and_a_click_makes_a_reset(lab):
    shown = solved(lab)
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
    assert "Fixed: 4, wrong" in status(lab)
    digit(lab, 40).click()
    changed = solved(lab)
    assert (changed["cells"][40], changed["right"][40]) == (5, 0)
    assert changed["answers"][0] == changed["right"]
    assert digit(lab, 40).get_attribute("aria-label") == "position 41: reset"
    assert status(lab).startswith("Position 41, a reset")
    digit(lab, 40).click()
    assert solved(lab)["cells"] == shown["cells"]


def test_an_answer_is_looked_at_and_the_keyboard_moves_and_writes(lab):
    lab.locator("#lab td.answer[data-position='9']").first.click()
    assert solved(lab)["position"] == 9
    rows = [lab.evaluate(STRENGTHS, model) for model in (0, 1)]
    for row in rows:
        assert max(row[:10]) == 1
        assert not any(row[10:])
    assert max(rows[0][:5]) < 0.8 * max(rows[1][:5])  # from before the reset at 5
    assert "4 since the reset" in status(lab)
    assert "in data-controlled" in status(lab)
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
    assert f"since the start: {before[0]}, modulo 5 that is {before[0]}." in status(lab)
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
