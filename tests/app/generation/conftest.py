"""Tokenizers of the model "tiny", with its own chat template and with others."""

import shutil

import pytest
from mlx_gateloop.app.generation.chat_tokenizer import ChatTokenizer


@pytest.fixture(scope="module")
def tokenizer(models_folder):
    return ChatTokenizer(str(models_folder / "tiny"))


@pytest.fixture
def with_template(models_folder, tmp_path):
    def make(template):
        shutil.copytree(models_folder / "tiny", tmp_path / "tiny")
        (tmp_path / "tiny" / "chat_template.jinja").write_text(template)
        return ChatTokenizer(str(tmp_path / "tiny"))

    return make
