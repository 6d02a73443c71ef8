"""Server functions of the page: bounded work, and no trust in a request."""

import asyncio
import threading

from mlx_gateloop.app.generation.worker_pool import WorkerPool
from mlx_gateloop.app.page.served import served

from mlx_gateloop.errors import InputError


def job(run, trace, first, *rest):
    if first < 0:
        raise InputError("/home/me/words: too early")
    return [run.id, trace.tokens, first, *rest]


def test_a_request_has_a_run_and_integers_or_no_answer(engine, run):
    answer = served(engine.recorded, WorkerPool(1, 1), job)
    assert answer.__name__ == "job"

    def ask(request):
        return asyncio.run(answer(request))

    assert ask([run.id, 1]) == [run.id, run.trace.tokens, 1]
    assert ask([run.id, 1, 2])[2:] == [1, 2]
    assert ask([run.id, -1]) == {"error": "words: too early"}
    wrong = [None, 5, "x", {}, {"0": run.id}, [], [run.id]]
    wrong += [[id, 1] for id in (None, [run.id], "unknown")]
    wrong += [[run.id, value] for value in ("0", None, [], 0.5, True, float("nan"), {})]
    for request in wrong:
        assert ask(request) is None


def test_work_is_done_one_at_a_time_beside_the_loop_and_bounded():
    pool, go_on, begun = WorkerPool(threads=1, max_jobs=2), threading.Event(), []

    def slow():
        begun.append(threading.current_thread())
        assert go_on.wait(120)
        return len(begun)

    async def work():
        two = [asyncio.create_task(pool(slow)) for _ in range(2)]
        while not begun:
            await asyncio.sleep(0.01)  # the loop goes on
        assert await pool(slow) is None
        go_on.set()
        assert await asyncio.gather(*two) == [1, 2]
        assert await pool(slow) == 3

    asyncio.run(work())
    assert {*begun} == {begun[0]} != {threading.main_thread()}


def test_a_result_may_be_awaited(engine, run):
    async def later(run, trace):
        raise InputError("late")

    answer = served(engine.recorded, WorkerPool(1, 1), later)
    assert asyncio.run(answer([run.id])) == {"error": "late"}
