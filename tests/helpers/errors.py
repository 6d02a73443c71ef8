"""Errors that a user sees."""

import pytest

from mlx_gateloop.errors import InputError


def refusal(call, *arguments, **options):
    """Return the one line with which a call raises `InputError`."""
    with pytest.raises(InputError) as error:
        call(*arguments, **options)
    line = str(error.value)
    assert "\n" not in line
    assert len(line) < 1000
    return line
