"""Sets of ops that run as one kernel, and which of these can be joined: a kernel ends before another reads what it
makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set


class Joined:
    """Ops by their numbers, each in one set; at first each by itself.

    `makers`: of each op those whose results it reads. `order`: the ops with makers before their readers. `complete`:
    those whose results can only be read when all of their kernel has run.
    """

    def __init__(self, makers: Sequence[Iterable[int]], order: Sequence[int], complete: Set[int]) -> None:
        self._makers = makers
        self._place = {n: place for place, n in enumerate(order)}
        self._complete = complete
        self._parent = list(range(len(makers)))
        self._members = {n: [n] for n in range(len(makers))}  # of each set, by its root

    def root(self, n: int) -> int:
        """The op that stands for the set of op `n`."""
        while self._parent[n] != n:
            self._parent[n] = self._parent[self._parent[n]]
            n = self._parent[n]
        return n

    def join(self, some: Sequence[int]) -> None:
        """Makes one set of those of some ops."""
        for n in some:
            root, other = self.root(some[0]), self.root(n)
            if root != other:
                self._parent[other] = root
                self._members[root] += self._members.pop(other)

    def apart(self, m: int, n: int) -> bool:
        """Whether the sets of two ops cannot be one: what one of them makes comes to the other through a third, or is
        known only when all of it has run."""
        return self.waits(m, n) or self.waits(n, m)

    def waits(self, n: int, m: int) -> bool:
        """Whether the set of an op can only begin when that of another has ended."""
        reader, made = self.root(n), self.root(m)
        if reader == made:
            return False
        first = min(map(self._place.__getitem__, self._members[made]))
        seen, waiting = {reader}, [reader]
        while waiting:
            at = waiting.pop()
            for m in (m for n in self._members[at] for m in self._makers[n]):
                root = self.root(m)
                if root == made and (at != reader or m in self._complete):
                    return True
                if root not in seen and root != made and any(self._place[k] > first for k in self._members[root]):
                    seen.add(root)
                    waiting.append(root)
        return False


def made_from(reads: Mapping[str, Sequence[str]], carried: Mapping[str, str]) -> dict[str, list[str]]:
    """Of each result of an op, those of other ops that it is made from. `reads`: what each op reads, makers before
    readers; `carried`: what carries are, each by what it was before."""
    found: dict[str, list[str]] = {}
    for result, names in reads.items():
        own = found[result] = []
        for name in names:
            while name in carried:
                name = carried[name]
            own += [name] if name in found else []
    return found
