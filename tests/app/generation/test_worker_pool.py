"""A pool of threads: bounded work beside the event loop."""

import asyncio
import threading

from mlx_gateloop.app.generation.worker_pool import WorkerPool


async def test_work_is_done_one_at_a_time_beside_the_loop_and_bounded():
    pool, go_on, begun = WorkerPool(threads=1, max_jobs=2), threading.Event(), []

    def slow():
        begun.append(threading.current_thread())
        assert go_on.wait(120)
        return len(begun)

    two = [asyncio.create_task(pool(slow)) for _ in range(2)]
    while not begun:
        await asyncio.sleep(0.01)  # the loop goes on
    assert await pool(slow) is None
    go_on.set()
    assert await asyncio.gather(*two) == [1, 2]
    assert await pool(slow) == 3
    assert {*begun} == {begun[0]} != {threading.main_thread()}
