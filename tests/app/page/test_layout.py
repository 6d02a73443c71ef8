"""The page's own choices."""

from mlx_gateloop.app.page.layout import pair


def test_side_by_side_begins_with_a_model_and_its_partner_of_fixed_transitions():
    assert pair(["code", "demo", "demo-fixed", "mine"]) == ("demo", "demo-fixed")
    assert pair(["b-fixed", "a", "b"]) == ("b", "b-fixed")
    assert pair(["a", "b", "c"]) == ("a", "b")
    assert pair(["a"]) == ("a", "a")
