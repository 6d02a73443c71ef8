import pytest
from helpers.training import TEXT


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT[:6000], encoding="utf-8")
    return path
