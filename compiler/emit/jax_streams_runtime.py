"""What an emitted JAX file carries where something comes from the chips' host, as `jax_runtime` has it.

Stacked tensors are divided into what chips keep and what lies in the host's memory; there a chip has a part of its own,
and arrays say by their type in which memory they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from .jax_runtime import own_block


class Streamed(NamedTuple):
    """A stacked tensor, or its specs: the repetitions that chips keep, and those that lie in the host's memory."""

    kept: Any
    host: Any


def is_streamed(a: Any) -> bool:
    """Whether a part of a tree is one such tensor."""
    return isinstance(a, Streamed)


def streamed_rows(count: int, streamed: int) -> np.ndarray:
    """Which of `count` repetitions come from the host: each is the last of a run, and longer runs come first."""
    shorter, longer = divmod(count, streamed)
    return np.cumsum([shorter + (k < longer) for k in range(streamed)]) - 1


def apart(tree: Any, specs: Any, streamed: int) -> Any:
    """Stacked tensors, of those that are streamed the repetitions that chips keep apart from the others."""

    def divide(spec: Any, a: Any) -> Any:
        if not is_streamed(spec):
            return a
        rows = streamed_rows(len(a), streamed)
        return Streamed(a[np.delete(np.arange(len(a)), rows)], a[rows])

    return jax.tree.map(divide, specs, tree, is_leaf=is_streamed)


def whole(tree: Any) -> Any:
    """Stacked tensors with all of their repetitions in order, as arrays of the process."""

    def join(a: Any) -> Any:
        if not is_streamed(a):
            return a
        kept, host = np.asarray(a.kept), np.asarray(a.host)
        rows = streamed_rows(len(kept) + len(host), len(host))
        every = np.empty((len(kept) + len(host), *host.shape[1:]), host.dtype)
        every[rows], every[np.delete(np.arange(len(every)), rows)] = host, kept
        return every

    return jax.tree.map(join, tree, is_leaf=is_streamed)


def places(mesh: Any, specs: Any) -> Any:
    """Where things of such specs lie: what is streamed in the host's memory, where the platform has that; elsewhere
    with the rest, and fetching it is a plain copy. So it is on CPUs before JAX 0.10.2, which forgets there in which
    memory results are."""
    device = mesh.devices.flat[0]
    kinds = {memory.kind for memory in device.addressable_memories()}
    knows = device.platform != "cpu" or jax.__version_info__ >= (0, 10, 2)
    host = {"memory_kind": "pinned_host"} if knows and "pinned_host" in kinds else {}

    def place(spec: Any) -> Any:
        if not is_streamed(spec):
            return NamedSharding(mesh, spec)
        return Streamed(NamedSharding(mesh, spec.kept), NamedSharding(mesh, spec.host, **host))

    return jax.tree.map(place, specs, is_leaf=is_streamed)


def part_axes(spec: Streamed) -> list[tuple[int, tuple[str, ...], tuple[str, ...]]]:
    """Of each dimension the axes that split it on the chips, and those that split it further in the host's memory."""
    found = []
    for dim, axes in enumerate(itertools.zip_longest(spec.kept, spec.host)):
        own, parts = ((a,) if isinstance(a, str) else tuple(a or ()) for a in axes)
        found.append((dim, own, parts[len(own) :]))
    return found


def fetched(host: jax.Array, at: Any, spec: Streamed) -> jax.Array:
    """Repetition `at` of what lies in the host's memory: each chip fetches its part, and they gather the others."""
    a = jax.device_put(lax.dynamic_index_in_dim(host, at, keepdims=False), jax.memory.Space.Device)
    for dim, _, axes in part_axes(spec):
        if axes:
            a = lax.all_gather(a, axes, axis=dim - 1, tiled=True, to="invarying")
    return a


def sent_back(
    host: jax.Array, after: jax.Array, at: Any, spec: Streamed, end: Any, entries: int, dim: int
) -> jax.Array:
    """The host's memory with the `entries` places before `end` along `dim` of what a chip has of repetition `at`: those
    of them that it holds, or as many beside them, which are as they were."""
    axes = next((own for n, own, _ in part_axes(spec) if n == dim), ())
    local = after.shape[dim]
    ways, block = (lax.axis_size(axes), lax.axis_index(axes)) if axes else (1, 0)
    width = min(local, entries)
    start = jnp.clip((end - entries) % (local * ways) - block * local, 0, local - width)
    new = lax.dynamic_slice_in_dim(after, start, width, dim)
    for other, _, more in part_axes(spec):
        new = own_block(new, more, other) if more else new
    corner = (at, *(start if n == dim else 0 for n in range(1, after.ndim)))
    return lax.dynamic_update_slice(host, jax.device_put(new, jax.typeof(host).memory_space), corner)


class StreamedLoop(NamedTuple):
    """What `scan_streamed` goes over: `leaves` and `form` are those of the tree of weights."""

    body: Callable[..., Any]
    leaves: Sequence[Any]
    form: Any
    leaf_specs: Sequence[Any]
    caches: Sequence[Streamed]
    cache_specs: Sequence[Streamed]
    new: Sequence[tuple[Any, int, int, bool] | None]
    layers: int
    ahead: int

    def streamed(self) -> int:
        """How many repetitions come from the host."""
        return len(next(leaf for leaf in (*self.leaves, *self.caches) if is_streamed(leaf)).host)

    def repetition(self, i: Any, j: Any, came: Any) -> tuple[Any, Any, Any]:
        """What the body takes of repetition `i`, the chips' own `j`, or of one whose weights `came`."""
        row, given = partial(lax.dynamic_index_in_dim, keepdims=False), iter(came or ())
        rows = [(next(given) if came else row(a.kept, j)) if is_streamed(a) else row(a, i) for a in self.leaves]
        return i, j, jax.tree.unflatten(self.form, rows)

    def fetch(self, hosts: Sequence[jax.Array], k: Any) -> tuple[Any, Any]:
        """The weights and caches of the repetition `k` of those that come; of caches that are filled anew the room."""
        both = zip(self.leaves, self.leaf_specs, strict=True)
        came = [fetched(leaf.host, k, spec) for leaf, spec in both if is_streamed(leaf)]
        held = []
        for host, cache, spec, one in zip(hosts, self.caches, self.cache_specs, self.new, strict=True):
            room = (1, *cache.kept.shape[1:])
            held.append(jnp.zeros(room, host.dtype) if one and not one[3] else fetched(host, k, spec)[None])
        return came, tuple(held)

    def run(self, length: int, fetching: bool, carry: Any, k: Any) -> tuple[Any, Any]:
        """So many repetitions, of which the last is the one `k` of those that come. `fetching`: another is sent for."""
        state, kept, hosts, ring = carry
        shorter, longer = divmod(self.layers, self.streamed())
        first, own = k * shorter + jnp.minimum(k, longer), len(state)
        beside = []

        def resident(carry: Any, n: Any) -> tuple[Any, Any]:
            state, kept = carry
            out, lost = self.body((*state, *kept), self.repetition(first + n, first + n - k, None))
            return (out[:own], out[own:]), lost

        if length > 1:
            (state, kept), lost = lax.scan(resident, (state, kept), jnp.arange(length - 1))
            beside.append(lost)
        ring = (*ring, self.fetch(hosts, k + self.ahead)) if fetching else ring
        came, held = ring[0]
        out, lost = self.body((*state, *held), self.repetition(first + length - 1, 0, came))
        hosts = tuple(
            host if one is None else sent_back(host, cache, k, spec, *one[:3])
            for host, cache, spec, one in zip(hosts, out[own:], self.cache_specs, self.new, strict=True)
        )
        every = [*(jnp.sum(a, 0) for a in beside if a is not None), *(a for a in [lost] if a is not None)]
        return (out[:own], kept, hosts, ring[1:]), sum(every)


def scan_streamed(
    body: Callable[..., Any],
    state: tuple[Any, ...],
    weights: Any,
    caches: Sequence[Streamed],
    specs: tuple[Any, Sequence[Streamed]],
    new: Sequence[tuple[Any, int, int, bool] | None],
    count: int,
    ahead: int,
) -> tuple[tuple[Any, ...], tuple[Streamed, ...], Any]:
    """`lax.scan` of `body` over `count` repetitions, some of whose `weights` and `caches` come from the host: `ahead`
    of those that do, before they are needed.

    `body` takes its state with the caches, and of a repetition its number, its place in the caches that it is given,
    and its weights. `specs`: of weights and caches; `new`: of each cache where its new entries end, how many they are,
    along which dimension, and whether it has others. Gives the state, the caches, and the sum of what `body` gives
    beside.
    """
    leaves, form = jax.tree.flatten(weights, is_leaf=is_streamed)
    leaf_specs = jax.tree.leaves(specs[0], is_leaf=is_streamed)
    loop = StreamedLoop(body, leaves, form, leaf_specs, caches, specs[1], new, count, ahead)
    streamed = loop.streamed()
    shorter, longer = divmod(count, streamed)
    hosts = tuple(cache.host for cache in caches)
    ring = tuple(loop.fetch(hosts, k) for k in range(min(ahead, streamed)))
    carry: Any = (state, tuple(cache.kept for cache in caches), hosts, ring)
    total: Any = 0
    for first, end, length in ((0, longer, shorter + 1), (longer, streamed, shorter)):
        last = min(end, max(first, streamed - ahead))  # from there on all that comes has been sent for
        if last > first:
            carry, lost = lax.scan(partial(loop.run, length, True), carry, jnp.arange(first, last))
            total += jnp.sum(lost, 0)
        for k in range(last, end):
            carry, lost = loop.run(length, False, carry, k)
            total += lost
    state, kept, hosts, _ = carry
    return state, tuple(map(Streamed, kept, hosts)), total
