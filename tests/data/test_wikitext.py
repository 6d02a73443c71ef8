import numpy as np
import pyarrow
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from pyarrow import parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mlx_gateloop.data import Corpus, encode, load_corpus, wikitext
from mlx_gateloop.errors import InputError

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


def test_without_a_network_the_way_out_is_named(monkeypatch):
    def fail(*_, **__):
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(InputError, match=r"cannot be downloaded .* run `hf download Salesforce"):
        load_corpus("wikitext-103")


def test_broken_and_missing_parts(tmp_path):
    (tmp_path / "train-0.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError, match="not a parquet file of WikiText"):
        load_corpus(str(tmp_path))
    (tmp_path / "wiki.train.raw").write_text("".join(LINES))
    with pytest.raises(InputError, match=r"no wiki\.valid\.raw and no validation-\*\.parquet"):
        load_corpus(str(tmp_path))


def test_tokens_are_those_of_the_rows_one_after_another(tmp_path):
    """The text of the systems that the paper compares with: rows without end-of-text tokens."""
    for part in ("train", "valid", "test"):
        (tmp_path / f"wiki.{part}.raw").write_text("".join(LINES))
    tokenizer = tiny_gpt2()
    rows = [line for line in LINES if line != " \n"]
    expected = [token for row in rows for token in tokenizer.encode(row)]
    (document,) = load_corpus(str(tmp_path)).test
    assert encode([document], tokenizer).tolist() == [*expected, tokenizer.eos_token_id]
    assert tokenizer.decode(expected) == TEXT


def tiny_gpt2():
    """A byte-level BPE tokenizer that splits words as GPT-2's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"]
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def test_a_column_that_holds_no_strings_is_refused(tmp_path):
    parquet.write_table(pyarrow.table({"text": [1, 2]}), tmp_path / "train-0.parquet")
    with pytest.raises(InputError, match="'text' holds int64; give one of strings"):
        wikitext.read_parts(tmp_path)


def test_a_small_file_that_repeats_a_line_is_not_unfolded(tmp_path):
    line = pyarrow.DictionaryArray.from_arrays(np.zeros(2_000_000, np.int32), ["x" * 1_000])
    parquet.write_table(pyarrow.table({"text": line}), tmp_path / "train-0.parquet")
    with pytest.raises(InputError, match=r"2,000,000,000 bytes of text; WikiText has less"):
        wikitext.read_parts(tmp_path)
