import pytest

from mlx_gateloop.bench.scaling import Cluster, Link, best_interval, fit, simulate

CALM = Cluster(4, compute=1.0, spread=0.0, exchange=0.1, failure=1e12, save=2.0, restart=60.0)


def test_a_link_is_found_again():
    link = Link(latency=1e-4, bandwidth=1e9)
    sizes = [(size, ranks) for size in (1e3, 1e6, 1e9) for ranks in (2, 4)]
    found = fit([(*size, link.exchange(*size)) for size in sizes])
    assert found.latency == pytest.approx(link.latency)
    assert found.bandwidth == pytest.approx(link.bandwidth)
    assert link.exchange(1e9, 1) == 0
    assert link.exchange(1e9, 2) == pytest.approx(1 + 2e-4), "half there, half back"


def test_a_run_without_failures_is_its_steps_and_checkpoints():
    assert simulate(CALM, steps=100, interval=10, seed=0) == pytest.approx(100 * 1.1 + 10 * 2)


def test_the_best_interval_is_near_young_s():
    cluster = Cluster(8, 1.0, 0.05, 0.2, failure=8 * 5_000, save=5.0, restart=100.0)
    step = 1.2 * 1.1  # the slowest of 8 is 7% slower
    assert 0.4 < best_interval(cluster, 8192, runs=3) * step / cluster.young < 2.5
    assert best_interval(CALM, 1024, runs=1) == 1024


def test_failures_and_stragglers_take_time():
    calm = simulate(CALM, 1000, 50, seed=1)
    assert simulate(Cluster(4, 1.0, 0.2, 0.1, 1e12, 2.0, 60.0), 1000, 50, seed=1) > 1.1 * calm
    assert simulate(Cluster(4, 1.0, 0.0, 0.1, 800.0, 2.0, 60.0), 1000, 50, seed=1) > calm + 60
