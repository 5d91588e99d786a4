"""Emitted JAX files run as programs, one after the other in one process."""

from __future__ import annotations

import re
from pathlib import Path

from forked_jax import run_code

# Runs files one after the other in one process, whose devices cannot be counted twice.
DRIVER = """
import runpy, sys
import jax
sys.modules["escc"] = None
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 16)
jax.config.update = lambda *_: None
for path in sys.argv[1:]:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        print("exit", path, end.code, flush=True)
    except Exception as error:
        print("exit", path, repr(error)[:300], flush=True)
"""


def run_files(texts: dict[str, str], folder: Path) -> dict[str, str]:
    """The exit code of each text, run as a program where this package cannot be imported."""
    paths = {str(folder / f"case{i}.py"): name for i, name in enumerate(texts)}
    for path, name in paths.items():
        Path(path).write_text(texts[name])
    done = run_code(DRIVER, *paths)
    ends = re.findall(r"^exit (\S+) (.*)$", done.stdout, re.MULTILINE)
    assert len(ends) == len(texts), done.stdout + done.stderr
    return {paths[path]: code for path, code in ends}
