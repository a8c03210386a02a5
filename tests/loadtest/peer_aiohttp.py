#!/usr/bin/env python3
"""An open-loop client as Python load testers are built (asyncio, aiohttp, one task per request, sleep until each request's
time), to put `oar loadtest` beside: same constant rate, same server, latency and schedule slip by the same definitions.

    pip install aiohttp
    sse_server 19010 2 20 5 10 1 &          20 ms to the first of 10 chunks, 5 ms between: what is true is known
    peer_aiohttp.py http://127.0.0.1:19010 RATE REQUESTS

Prints one JSON object: slip and TTFT percentiles in ms, from the actual and from the intended send time.
"""
import asyncio
import json
import sys
import time

import aiohttp


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p / 100 * len(values)))] * 1e3


async def one(session, url, start, due, out):
    sent = time.perf_counter() - start
    first = last = None
    body = {"model": "fake", "stream": True, "max_tokens": 10, "messages": [{"role": "user", "content": "word " * 20}]}
    async with session.post(url + "/v1/chat/completions", json=body) as response:
        async for line in response.content:
            if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[5:])
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                last = time.perf_counter() - start
                first = first or last
    out.append((due, sent, first, last))


async def main(url, rate, count):
    out, tasks = [], []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        start = time.perf_counter() + 0.1
        for i in range(count):
            due = i / rate
            if (wait := start + due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(one(session, url, start, due, out)))
        await asyncio.gather(*tasks)
    slip = [sent - due for due, sent, _, _ in out]
    ttft = [first - sent for _, sent, first, _ in out]
    whole = [first - due for due, _, first, _ in out]
    print(json.dumps({"rate": rate, "requests": count, **{
        f"{name}_p{p}_ms": round(percentile(values, p), 3) for name, values in (("slip", slip), ("ttft", ttft), ("ttft_intended", whole))
        for p in (50, 99)}}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
