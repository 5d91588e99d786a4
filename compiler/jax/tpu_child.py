"""The part of a TPU check that needs JAX, as a process of its own: `python -m escc.compiler.jax.tpu_child FOLDER`.

FOLDER holds `step.py`, an emitted module, and `slice.json`: the `topology` of a slice and its `config` as the TPU's
compiler calls them, and the `sizes` of the mesh. The step is compiled ahead of time, from shapes alone, for devices
that need not be there. Beside it come `final.txt`, the optimised and scheduled module, and `memory.json`, bytes of a
chip; or, where the compiler refuses, `refused.txt`, what it says; or beside the memory, where JAX cannot write the
module as text, `unreadable.txt`, what it says of that.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

# Before JAX looks: no chips are asked for, and nobody is asked over the network what this machine is.
ALONE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",  # nothing runs, so that no lock on chips is needed
}
os.environ.update(ALONE)

import jax  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh  # noqa: E402

from .check_child import load, step_arguments  # noqa: E402

MEMORY = ("argument", "output", "alias", "temp", "generated_code")


def main(folder: Path) -> None:
    """Compile the step in `folder` for its slice."""
    wanted = json.loads((folder / "slice.json").read_text())
    try:
        compiled = _compiled(folder, wanted)
    except jax.errors.JaxRuntimeError as error:
        (folder / "refused.txt").write_text(str(error))
        return
    found = compiled.memory_analysis()
    (folder / "memory.json").write_text(json.dumps({name: getattr(found, f"{name}_size_in_bytes") for name in MEMORY}))
    try:
        (folder / "final.txt").write_text(compiled.as_text())
    except jax.errors.JaxRuntimeError as error:
        (folder / "unreadable.txt").write_text(str(error))


def _compiled(folder: Path, wanted: dict[str, Any]) -> jax.stages.Compiled:
    config = {} if wanted["config"] is None else {"chip_config_name": wanted["config"]}
    topology = topologies.get_topology_desc(wanted["topology"], "tpu", **config)
    placed = topologies.make_mesh(topology, wanted["sizes"], wanted["names"])
    mesh = Mesh(placed.devices, placed.axis_names)  # whose axes are Auto, as those of the emitted module's own
    module = load(folder / "step.py")
    return module.build(mesh).lower(*step_arguments(module, mesh)).compile()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
