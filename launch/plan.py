"""Plan a step without its chips: python launch/plan.py --config=configs/c_grpo_tiny.py --topology=cpu:4

Topologies: v5p:4x4x4, v6e:8x8, v5e:4x4, v4:2x2x4 (by the TPU compiler: pip install 'carr_jax[plan]'), h200:8,
h100:8 (no compiler without a GPU: the peak is an estimate), cpu, cpu:4.  `--json` adds a last line of JSON;
`--table=docs/plans.md` makes all plans of the documentation.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from carr_jax.planning.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
