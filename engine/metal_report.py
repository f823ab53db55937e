"""What `pillion doctor --metal` found out about the Metal kernels on one machine."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class KernelReport(Struct, frozen=True, kw_only=True):
    """A kernel at one shape of a model.

    modules: of the model that have this shape. verdict: ``used``, ``stock`` (right, but stock MLX
    is as good), ``wrong``, or ``none`` (there is no kernel). detail: why. rows: of a forward, at
    which the kernel is used. like_stock: whether its single row has the bits of stock MLX's;
    stock_exact: the numbers of rows at which stock MLX's rows have the bits of its single rows.
    ours, stock: microseconds a call in a chain of dependent ones, by rows.
    """

    kernel: str
    shape: str
    dtype: str
    modules: int
    verdict: Literal["used", "stock", "wrong", "none"]
    detail: str = ""
    rows: tuple[int, ...] = ()
    like_stock: bool | None = None
    stock_exact: tuple[int, ...] | None = None
    ours: dict[int, float] = {}
    stock: dict[int, float] = {}


class MetalReport(Struct, frozen=True, kw_only=True):
    """device, architecture: as Metal names them. model: whose shapes were tried. rows: of the
    widest forward that was tried. seconds: what it took."""

    device: str
    architecture: str
    mlx: str
    model: str
    rows: int
    kernels: tuple[KernelReport, ...]
    seconds: float

    @property
    def right(self) -> bool:
        """Whether every kernel that there is compiled and was right."""
        return all(kernel.verdict != "wrong" for kernel in self.kernels)
