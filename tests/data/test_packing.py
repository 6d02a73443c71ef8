from itertools import combinations

import numpy as np
from helpers.errors import refusal
from helpers.models import chat_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from mlx_gateloop.data import Batches, Stream, pack
from mlx_gateloop.tokenizer import byte_tokenizer


def test_pack_ends_every_document_and_keeps_special_text_as_text():
    tokenizer = byte_tokenizer()
    stream = pack(["ab", "</s>"], tokenizer).tokens
    assert stream.dtype == np.uint16
    assert tokenizer.decode(stream[:2]) == "ab"
    assert np.flatnonzero(stream == tokenizer.eos_token_id).tolist() == [2, 7]
    assert len(pack([], tokenizer).tokens) == 0


def test_pack_renders_chats_with_real_markers():
    tokenizer, chat = chat_tokenizer(), [{"role": "user", "content": "hi"}]
    stream = pack([chat], tokenizer).tokens
    assert tokenizer.decode(stream) == "<|im_start|>user\nhi<|im_end|>\n</s>"
    assert stream[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert "tokenizer has no chat template" in refusal(pack, [chat], byte_tokenizer())


def test_a_stream_marks_where_documents_begin():
    stream = pack(["ab", "", "c"], byte_tokenizer())
    assert np.flatnonzero(stream.starts).tolist() == [0, 3, 4]
    inputs, targets, starts = stream.windows(np.array([[2, 3, 4, 5]]))
    assert (inputs[0, 1:] == targets[0, :-1]).all()
    assert starts.tolist() == [[False, True, True]]
    assert pack(["ab"], byte_tokenizer()).starts is None, "nothing to reset"


@given(*(st.integers(*ends) for ends in ((2, 300), (1, 5), (1, 12), (0, 5))))
def test_rows_of_carrying_batches_continue(count, batch_size, length, epoch):
    if (count - 1) // length < batch_size:
        return
    batches = Batches(Stream(np.arange(count)), batch_size, length, seed=1, carries=True)
    rows = [batches.batch(epoch, index)[0] for index in range(batches.per_epoch)]
    assert (np.diff(np.concatenate(rows, 1)) == 1).all()
    assert len({*np.concatenate(rows, 1).reshape(-1).tolist()}) == np.concatenate(rows, 1).size


def test_carrying_batches_read_all_of_a_text_over_the_epochs():
    batches = Batches(Stream(np.arange(128)), 64, 1, seed=1, carries=True)
    assert len({*np.concatenate([batches.batch(epoch, 0)[0] for epoch in range(99)]).flat}) > 120


@given(*(st.integers(*ends) for ends in ((2, 300), (1, 5), (1, 12), (0, 9), (0, 5))))
def test_an_epoch_holds_every_window_at_most_once(count, batch_size, length, seed, epoch):
    tokens = np.arange(count)
    if (windows := (count - 1) // length) < batch_size:
        line = refusal(Batches, Stream(tokens), batch_size, length, seed)
        assert f"has {count} tokens and one batch" in line
        return
    batches = Batches(Stream(tokens), batch_size, length, seed)
    assert batches.per_epoch == windows // batch_size
    starts = []
    for index in range(batches.per_epoch):
        inputs, targets = batches.batch(epoch, index)
        assert inputs.shape == targets.shape == (batch_size, length)
        assert inputs.dtype == targets.dtype == np.int32
        assert (targets == inputs + 1).all()
        assert (inputs == inputs[:, :1] + np.arange(length)).all()
        starts += inputs[:, 0].tolist()
    assert len(set(starts)) == len(starts)
    assert len({start % length for start in starts}) == 1  # an offset of the epoch's own


def test_a_batch_depends_on_seed_epoch_and_index_alone():
    one, same, other = (Batches(Stream(np.arange(1000)), 2, 8, seed=seed) for seed in (3, 3, 4))
    orders = [
        [batches.batch(epoch, index)[0].tolist() for index in range(batches.per_epoch)]
        for batches, epoch in ((one, 0), (one, 1), (other, 0))
    ]
    assert same.batch(1, 4)[0].tolist() == orders[1][4]
    assert all(a != b for a, b in combinations(orders, 2))
