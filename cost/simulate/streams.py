"""Layers that come from a host, played out one by one: when each is fetched and when it runs.

Shares nothing with the formula of `cost.streams`, which it checks.
"""

from __future__ import annotations


def play(count: int, streamed: int, step_s: float, fetch_s: float, ahead: int, calls: int) -> float:
    """Seconds of a call in the later half of so many, in which everything has found its pace.

    `streamed` of `count` layers are fetched, one at a time and each as soon as there is room: chips have room for
    `ahead` of them beside the one that runs, or ran last. With none ahead fetching waits until a layer is needed.
    """
    ran_s = [0.0] * (1 + ahead)  # when what lay in each room was last used
    free_s = now_s = middle_s = 0.0
    fetched = 0
    for call in range(calls):
        if call == calls // 2:
            middle_s = now_s
        for layer in range(count):
            if (layer + 1) * streamed // count > layer * streamed // count:
                room = fetched % len(ran_s)
                start_s = max(free_s, ran_s[room]) if ahead else now_s
                free_s = start_s + fetch_s
                now_s = ran_s[room] = max(now_s, free_s) + step_s
                fetched += 1
            else:
                now_s += step_s
    return (now_s - middle_s) / (calls - calls // 2)
