"""The legal partitions of one tensor on a mesh, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from math import comb, perm, prod

from ...ir.diagnostics import Diagnostic, InputError, did_you_mean, fail
from ...ir.dtype import Dtype
from ...ir.layout import format_layout, parse_layout
from ...ir.mesh import Mesh
from ...passes.expansion.dims import MAX_ELEMENTS, MAX_RANK, MAX_SIZE
from ...passes.layouts.space import tensor_space
from ...passes.layouts.strategies import live_axes
from ..text.table import table

MOST_ROWS = 100_000


def layouts_table(tensor: str, sizes: Mapping[str, int], mesh: Mesh, dtype: Dtype) -> str:
    """Every layout of a complete tensor that divides, fewest shards first; ends in a newline.

    `tensor` names its dims: `BLE` or `[batch, d_model]`. Raises InputError when it is no such list,
    when a dim has no size, or when there are too many layouts to list.
    """
    names = _dims(tensor, sizes)
    shape = [sizes[name] for name in names]
    if prod(shape) > MAX_ELEMENTS:
        raise fail(f"The tensor has more than 2^{MAX_ELEMENTS.bit_length() - 1} elements.")
    axes = live_axes(mesh)
    most = sum(perm(len(axes), k) * comb(k + len(names) - 1, k) for k in range(len(axes) + 1)) if names else 1
    if most > MOST_ROWS:
        hint = "name a smaller mesh"
        raise fail(f"A tensor of {len(names)} dims has up to {most:,} layouts on {len(axes)} axes.", hint=hint)
    space = tensor_space(shape, axes)
    layouts = sorted(
        (space.layout(row) for row in range(len(space))),
        key=lambda layout: (mesh.size(*layout.split_axes), len(layout.split_axes), layout.dims),
    )
    rows = [("layout", "shape on a chip", "shards", "bytes on a chip")]
    for layout in layouts:
        local = layout.local_shape(shape, mesh)
        shards = mesh.size(*layout.split_axes)
        held = prod(local) * dtype.bits / 8
        rows.append((format_layout(names, layout), "x".join(map(str, local)) or "1", str(shards), f"{held:,.15g}"))
    whole = "x".join(map(str, shape)) or "1"
    count = f"{len(layouts)} layout" + ("" if len(layouts) == 1 else "s")
    head = f"{count} of {format_layout(names, layouts[0])}, {whole} in {dtype}, on {mesh}: {mesh.chips} chips"
    return "\n".join([head, *table(rows, left=1)]) + "\n"


def _dims(tensor: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The dims that `tensor` names, each with a legal size."""
    names, layout = parse_layout(tensor)
    if layout.split_axes or layout.partial:
        raise fail(f"`{tensor[:60]}` is a layout.", hint="name the dims alone, as in `BLE` or `[batch, d_model]`")
    if len(names) > MAX_RANK:
        raise fail(f"The tensor has {len(names)} dims; at most {MAX_RANK} are supported.")
    found = [Diagnostic(f"The tensor has the dim `{n}` twice.") for n in dict.fromkeys(names) if names.count(n) > 1]
    for name in dict.fromkeys(names):
        if name not in sizes:
            found.append(Diagnostic(f"Dim `{name}` has no size.", hint=f"add `--dims {name}=...`"))
        elif not 1 <= sizes[name] <= MAX_SIZE:
            found.append(Diagnostic(f"The size of dim `{name}` is not between 1 and 2^40."))
    for name in [name for name in sizes if name not in names][:MAX_RANK]:
        found.append(Diagnostic(f"The tensor has no dim `{name[:60]}`.", hint=did_you_mean(name, names)))
    if found:
        raise InputError(found)
    return names
