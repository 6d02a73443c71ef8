"""Every kind of model."""

import pytest
from helpers.models import GROWING, VARIANTS, tiny_model


@pytest.fixture(params=(VARIANTS | GROWING).values(), ids=(VARIANTS | GROWING).keys())
def model(request):
    return tiny_model(**request.param)
