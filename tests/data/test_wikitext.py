from unittest.mock import Mock

import pyarrow
import pytest
from helpers.errors import refusal
from huggingface_hub.errors import LocalEntryNotFoundError
from pyarrow import parquet

from mlx_gateloop.data import Corpus, load_corpus, wikitext

BODY = [" \n", " First . \n", " \n", " = = Part = = \n", " \n", " More . \n", " \n"]
LINES = [" \n", " = One = \n", *BODY, " = Two @-@ fold = \n", " \n", " Second . \n"]
TEXT = "".join(line for line in LINES if line != " \n")


def write_parquet(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    # the hub's rows have nothing where the release has a line of one space
    rows = ["" if line == " \n" else line for line in lines]
    parquet.write_table(pyarrow.table({"text": rows}), path)


@pytest.mark.parametrize("suffix", ["raw", "tokens"])
def test_the_original_release(tmp_path, suffix):
    for part in ("train", "valid", "test"):
        (tmp_path / f"wiki.{part}.{suffix}").write_text("".join(LINES))
    assert load_corpus(str(tmp_path)) == Corpus([TEXT], [TEXT], [TEXT])


def test_parquet_files_of_several_shards(tmp_path):
    write_parquet(tmp_path / "train-00000-of-00002.parquet", LINES[:5])
    write_parquet(tmp_path / "train-00001-of-00002.parquet", LINES[5:])
    for part in ("validation", "test"):
        write_parquet(tmp_path / f"{part}-00000-of-00001.parquet", LINES)
    assert load_corpus(str(tmp_path)) == Corpus([TEXT], [TEXT], [TEXT])


def test_the_hub_is_asked_for_the_parquet_files(tmp_path, monkeypatch):
    asked = []

    def download(repository, **options):
        asked.append((repository, options))
        for part in ("train", "validation", "test"):
            write_parquet(tmp_path / wikitext.CONFIGURATION / f"{part}-0.parquet", LINES)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert load_corpus("wikitext-103") == Corpus([TEXT], [TEXT], [TEXT])
    patterns = {"repo_type": "dataset", "allow_patterns": "wikitext-103-raw-v1/*.parquet"}
    assert asked == [("Salesforce/wikitext", patterns)]
    offline = Mock(side_effect=LocalEntryNotFoundError("offline"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    line = refusal(load_corpus, "wikitext-103")
    assert "cannot be downloaded (LocalEntryNotFoundError); with a network, run `hf down" in line


def test_broken_and_missing_parts(tmp_path):
    parquet.write_table(pyarrow.table({"text": [1, 2]}), tmp_path / "train-0.parquet")
    assert "not a parquet file of WikiText" in refusal(load_corpus, str(tmp_path))
    (tmp_path / "train-0.parquet").write_bytes(b"not parquet")
    assert "not a parquet file of WikiText" in refusal(load_corpus, str(tmp_path))
    (tmp_path / "wiki.train.raw").write_text("".join(LINES))
    assert "no wiki.valid.raw and no validation-*.parquet" in refusal(load_corpus, str(tmp_path))
