"""The files of Python's library that no embedded model has read."""

import pytest

from benchmarks.embedded_models import library


@pytest.fixture(scope="session")
def unread():
    """The files of Python's library that the embedded model `code` has not read."""
    try:
        return library.unread(library.MODELS / "code")
    except SystemExit as error:
        pytest.skip(str(error))
