"""The page's own choices."""

import pytest
from mlx_gateloop.app.page.layout import pair


@pytest.mark.parametrize(
    ("names", "sides"),
    [
        (["code", "demo", "demo-fixed", "mine"], ("demo", "demo-fixed")),
        (["b-fixed", "a", "b"], ("b", "b-fixed")),
        (["a", "b", "c"], ("a", "b")),
        (["a"], ("a", "a")),
    ],
)
def test_side_by_side_begins_with_a_model_and_its_partner_of_fixed_transitions(names, sides):
    assert pair(names) == sides
