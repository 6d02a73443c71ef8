import numpy as np

from mlx_gateloop.data.task import UNASKED, SampleBatches, Samples


def samples(count):
    column = np.arange(count, dtype=np.int32)[:, None]
    return Samples(column, 10 * column, column)


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own():
    orders = []
    for seed, epoch in ((3, 0), (3, 1), (4, 1), (3, 1)):
        batches = SampleBatches(samples(11), 4, seed=seed)
        assert batches.per_epoch == 3
        parts = [batches.batch(epoch, index) for index in range(3)]
        assert [len(inputs) for inputs, _ in parts] == [4, 4, 3]
        for inputs, targets in parts:
            np.testing.assert_array_equal(targets, 10 * inputs)
        orders.append(np.concatenate([inputs for inputs, _ in parts]).ravel().tolist())
        assert sorted(orders[-1]) == list(range(11))
    assert orders[0] != orders[1] != orders[2]
    assert orders[1] == orders[3]


def test_the_targets_of_a_full_batch():
    assert SampleBatches(samples(11), 4, seed=3).targets == 4
    assert SampleBatches(samples(11), 40, seed=3).targets == 11
    column = np.array([[1, UNASKED], [1, 1], [UNASKED, UNASKED], [1, 1], [1, UNASKED]], np.int32)
    assert SampleBatches(Samples(column, column, column), 2, seed=3).targets == 2 * 6 / 5
