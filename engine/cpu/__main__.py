"""``python -m engine.cpu``: build the kernels for the Python that runs this."""

from __future__ import annotations

import sys

from engine.cpu.build import BuildError, build


def main() -> int:
    """0 when they are built; else 1, and why not."""
    print("building the CPU kernels, which takes about half a minute", file=sys.stderr)
    try:
        print(build())
    except BuildError as error:
        print(f"engine.cpu: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
