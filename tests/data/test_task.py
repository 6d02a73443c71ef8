import numpy as np

from mlx_gateloop.data.task import UNASKED, SampleBatches, Samples


def samples(count):
    column = np.arange(count, dtype=np.int32)[:, None]
    return Samples(column, 10 * column, column)


def test_an_epoch_has_every_sample_once():
    batches = SampleBatches(samples(11), 4, seed=3)
    assert batches.per_epoch == 3
    orders = []
    for epoch in (0, 1):
        parts = [batches.batch(epoch, index) for index in range(3)]
        assert [len(inputs) for inputs, _ in parts] == [4, 4, 3]
        for inputs, targets in parts:
            np.testing.assert_array_equal(targets, 10 * inputs)
        orders.append(np.concatenate([inputs for inputs, _ in parts]).ravel().tolist())
        assert sorted(orders[-1]) == list(range(11))
    assert orders[0] != orders[1]


def test_the_targets_of_a_full_batch():
    assert SampleBatches(samples(11), 4, seed=3).targets == 4
    assert SampleBatches(samples(11), 40, seed=3).targets == 11
    column = np.array([[1, UNASKED], [1, 1], [UNASKED, UNASKED], [1, 1], [1, UNASKED]], np.int32)
    assert SampleBatches(Samples(column, column, column), 2, seed=3).targets == 2 * 6 / 5


def test_a_batch_depends_on_its_number_alone():
    one, other = (SampleBatches(samples(50), 8, seed=3) for _ in range(2))
    one.batch(2, 1)
    one.batch(0, 4)
    np.testing.assert_array_equal(one.batch(1, 5)[0], other.batch(1, 5)[0])
    changed = SampleBatches(samples(50), 8, seed=4)
    assert (changed.batch(1, 5)[0] != other.batch(1, 5)[0]).any()
