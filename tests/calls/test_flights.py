"""Who asks the same at the same time: one call, one bill, and everybody's end is his own."""

import asyncio

import pytest

from carr_jax.calls.flights import Flights


class Errand:
    """Gives its number when `go` is set; counts how often it was begun and how often given up."""

    def __init__(self, failure=None):
        self.begun, self.given_up, self.go, self.failure = 0, 0, asyncio.Event(), failure

    async def __call__(self):
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self.failure:
            raise self.failure
        return self.begun


def run(test):
    asyncio.run(asyncio.wait_for(test(), 10))


async def joined(flights, errand, number, key="k"):
    tasks = [asyncio.create_task(flights.join(key, errand)) for _ in range(number)]
    await asyncio.sleep(0.01)
    return tasks


def test_one_errand_for_all_and_one_of_them_pays():
    async def test():
        flights, errand = Flights(), Errand()
        tasks = await joined(flights, errand, 4)
        errand.go.set()
        assert await asyncio.gather(*tasks) == [(1, True), (1, False), (1, False), (1, False)]
        assert await flights.join("k", errand) == (2, True), "what has ended is asked anew"
        others = await joined(flights, errand, 1, "a") + await joined(flights, errand, 1, "b")
        assert await asyncio.gather(*others) == [(3, True), (4, True)]

    run(test)


def test_a_failure_is_everybodys_and_is_not_kept():
    async def test():
        flights, errand = Flights(), Errand(ValueError("no"))
        tasks = await joined(flights, errand, 3)
        errand.go.set()
        got = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(error) for error in got] == ["no"] * 3 and errand.begun == 1
        errand.failure = None
        assert await flights.join("k", errand) == (2, True)

    run(test)


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_who_is_cancelled_leaves_alone(leaver):
    """The bill goes to the first who stays."""

    async def test():
        flights, errand = Flights(), Errand()
        tasks = await joined(flights, errand, 3)
        tasks[leaver].cancel()
        await asyncio.wait([tasks[leaver]])
        assert tasks[leaver].cancelled() and errand.given_up == 0
        errand.go.set()
        stayed = [task for task in tasks if task is not tasks[leaver]]
        assert await asyncio.gather(*stayed) == [(1, True), (1, False)]

    run(test)


def test_with_the_last_one_the_errand_ends_and_the_next_begins_anew():
    async def test():
        flights, errand = Flights(), Errand()
        tasks = await joined(flights, errand, 2)
        for task in tasks:
            task.cancel()
        late = asyncio.create_task(flights.join("k", errand))  # while the errand is being given up
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks) and errand.given_up == 1
        errand.go.set()
        assert await late == (2, True)

    run(test)


def test_one_that_always_lands_is_not_given_up_by_those_who_leave():
    async def test():
        flights, errand = Flights(lands=True), Errand()
        (left,) = await joined(flights, errand, 1)
        left.cancel()
        await asyncio.wait([left])
        late = asyncio.create_task(flights.join("k", errand))
        errand.go.set()
        assert await late == (1, True) and errand.given_up == 0, "the one who came later joined it"
        assert await flights.join("k", errand) == (2, True)

    run(test)


def test_what_is_under_way_at_the_end_is_given_up():
    async def test():
        flights, errand = Flights(lands=True), Errand()
        tasks = await joined(flights, errand, 2) + await joined(flights, errand, 1, "other")
        await flights.close()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks) and errand.given_up == 2

    run(test)
