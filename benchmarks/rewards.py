"""What scoring costs beside its judge: `python benchmarks/rewards.py` (ten seconds, any machine).

A trajectory has 45 tool calls (31 searches of 10 results, 10 opened pages, 4 finds) and 150,000 characters of
observations, 10 rubrics, and a response with 8 citations; no two share an address.  The judge says yes at once.

    score      CPU ms of scoring one trajectory (bar 2; the public reference needs 9)
    history    CPU ms of reading it from the reference's messages first, and scoring it
    growth     CPU ms with 1, 2, 4 and 8 times as many calls and citations: the cost must grow with them
    waiting    seconds for 128 trajectories in groups of 8 with a judge that takes 0.5 s a call (bar 1.6)
"""

import asyncio
import gc
import json
import time

from carr_jax.records import Verdict
from carr_jax.rewards import carr, group
from carr_jax.rewards.history import from_history

SEARCHES, RESULTS, PAGES, FINDS, CHARS, CITED = 31, 10, 10, 4, 150_000, 8
REPEATS = 60


class Yes:
    """Agrees with everything, after `seconds`."""

    def __init__(self, seconds=0.0):
        self.seconds = seconds

    async def _say(self, step, value):
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return Verdict(step, "ok", value)

    async def outcome(self, question, response):
        return await self._say("outcome", True)

    async def identify(self, question, response):
        return await self._say("identify", {f"E{i}": f"name {i}" for i in range(4)})

    async def support(self, question, names, indices, pages):
        return await self._say("support", [True] * len(indices))


def address(seed, number):
    """As they are met: some plain, some with a query, an escape or parentheses."""
    shapes = ("articles/{}", "w/index.php?title=P{}&lang=en", "wiki/Caf%C3%A9_{}", "wiki/Film_{}_(1999)")
    return f"https://site{number % 40}.example.org/{seed}/{shapes[number % 4].format(number)}"


def row(seed, scale=1):
    """A row of the reference with `scale` times the calls."""
    calls, number = [], 0
    words = "the quick brown fox jumps over the lazy dog and "
    snippet = CHARS // 2 // (SEARCHES * RESULTS) - 110
    for k in range(SEARCHES * scale):
        blocks = []
        for i in range(RESULTS):
            number += 1
            text = f"{seed} {number} {words * 9}"[:snippet]
            head = f"[{i}] Title: Title of {number}\n[{i}] URL Source: {address(seed, number)}"
            blocks.append(f"{head}\n[{i}] Description: {text}")
        calls.append(("browser.search", {"query": f"query {k}"}, "\n\n".join(blocks)))
        if k % 3 == 0 and k // 3 < PAGES * scale:
            body = f"{seed} {number} {words * 400}"[: CHARS // 2 // (PAGES + 1)]
            head = f"Title: Title of {number}\n\nURL Source: {address(seed, number)}\n\nMarkdown Content:\n"
            calls.append(("browser.open", {"id": RESULTS - 1}, head + body))
        if k % 8 == 0 and k // 8 < FINDS * scale:
            hits = "\n\n".join(f"[Match {m}]\n{seed} {number} {m} {words * 8}" for m in range(1, 6))
            calls.append(("browser.find", {"pattern": "fox"}, hits))
    cited = [address(seed, 1 + 37 * i % number) for i in range(CITED * scale)]
    said = " ".join(f"The film {i} was made by name {i} [[{i}]({url})]." for i, url in enumerate(cited))
    response = f"## Explanation with Citations\n{said}\n## Exact Answer\nname 0\n## References\n" + "\n".join(
        cited
    )
    rubrics = [f"Fact {i} about <E{i % 4}> and <E{(i + 1) % 4}>." for i in range(10)]
    environment = {"search_forbidden_strs": [f"Who {seed}?"], "rubrics": rubrics}
    return {"history": messages(calls, response), "label": "name 0", "remote_env_info": environment}


def messages(calls, response):
    history = [{"role": "user", "content": "Who?"}]
    for number, (name, arguments, output) in enumerate(calls):
        call = {"tool_call_id": str(number), "name": name, "arguments": json.dumps(arguments)}
        history.append({"role": "assistant", "reasoning_content": "thought " * 40, "tool_calls": [call]})
        history.append({"role": "tool", "content": [{"tool_call_id": str(number), "output": output}]})
    return [*history, {"role": "assistant", "reasoning_content": "done", "content": response}]


async def cpu_ms(make, rows, citations):
    """CPU milliseconds per row: the least of three rounds of all rows, each of rows never seen before."""
    rounds = []
    for part in (rows[0::3], rows[1::3], rows[2::3]):
        work = [make(r) for r in part]
        start = time.process_time()
        for item in work:
            question, trajectory = item if make is from_history else from_history(item)
            score = await carr.score_trajectory(question, trajectory, Yes(), citations=citations)
            assert score.known and score.outcome == 1.0 and score.citations and score.rubric == 1.0
        rounds.append(1000 * (time.process_time() - start) / len(part))
    return min(rounds)


async def waiting():
    """Wall seconds for 16 groups of 8, their trajectories already read."""
    groups = [[from_history(row(1000 + 8 * g + i)) for i in range(8)] for g in range(16)]
    gc.collect()  # what was left by the measurements before
    start = time.monotonic()
    await asyncio.gather(
        *(group.score_group(g[0][0], [t for _, t in g], Yes(0.5), "carr_paper") for g in groups)
    )
    return time.monotonic() - start


async def main():
    rows = [row(i) for i in range(REPEATS)]
    outputs = sum(len(e["output"]) for m in rows[0]["history"] if m["role"] == "tool" for e in m["content"])
    print(f"{sum(m['role'] == 'tool' for m in rows[0]['history'])} calls, {outputs:,} characters")
    for citations in carr.READERS:
        scored = await cpu_ms(from_history, rows, citations)
        read = await cpu_ms(lambda r: r, rows, citations)
        print(f"{citations:18} score {scored:5.2f} ms   history {read:5.2f} ms")
    for scale in (1, 2, 4, 8):
        part = [row(5000 + 100 * scale + i, scale) for i in range(9)]
        print(f"growth {scale}x          score {await cpu_ms(from_history, part, 'tolerant'):5.2f} ms", end="")
        part = [row(9000 + 100 * scale + i, scale) for i in range(9)]
        print(f"   history {await cpu_ms(lambda r: r, part, 'tolerant'):5.2f} ms")
    print(f"128 trajectories, judge of 0.5 s: {await waiting():.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
