"""`pillion doctor --metal`: this Mac's Metal kernels, checked and raced at a model's shapes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from engine import KernelReport, MetalReport, metal_available, metal_report
from sidecar.cli.report import check_writable, report_console, write_report
from sidecar.cli.terminal import Loading, print_json
from sidecar.config import Config

if TYPE_CHECKING:
    from rich.table import Table

REPORT = Path("pillion-metal.json")
EXIT_WRONG, EXIT_NO_METAL = 1, 4
NO_METAL = (
    "there is no Metal here: MLX does not run on an Apple GPU, so no Metal kernel was tried. "
    "Run this on a Mac with Apple silicon."
)


def check_metal(config: Config, *, as_json: bool, path: Path = REPORT) -> None:
    """Try the kernels at the shapes of the configured model, print a table, write the report to
    `path`. Exits 1 if a kernel is wrong, 4 where there is no Metal."""
    if not metal_available():
        finish(None, as_json=as_json, path=path)
    check_writable(path, "--metal")
    with Loading.shown(f"reading {config.engine.model}") as loading:
        report = metal_report(config.engine, loading.show)
    finish(report, as_json=as_json, path=path)


def finish(report: MetalReport | None, *, as_json: bool, path: Path) -> NoReturn:
    """Say what was found out, and exit as it was; None: that there is no Metal."""
    if report is None:
        if as_json:
            print_json({"metal": False, "reason": NO_METAL})
        else:
            typer.echo(NO_METAL)
        raise typer.Exit(EXIT_NO_METAL)
    write_report(path, {"metal": report})
    if as_json:
        print_json({"metal": True, "right": report.right, "report": report})
    else:
        console = report_console()
        console.print(table(report))
        for line in [*faults(report), f"written to {path}: attach it to a report"]:
            console.print(line, highlight=False)
    raise typer.Exit(0 if report.right else EXIT_WRONG)


def table(report: MetalReport) -> Table:
    """A line a kernel and shape: where it is used, what is exact, and stock MLX's time by ours."""
    from rich.table import Table

    title = f"{report.model} on {report.device} ({report.architecture}), MLX {report.mlx}"
    made = Table(title=title)
    for column in ("kernel", "shape", "in", "bits as stock's", "stock exact", "used"):
        made.add_column(column)
    timed = sorted({rows for kernel in report.kernels for rows in kernel.ours})
    for rows in timed:
        made.add_column(f"{rows} rows", justify="right")
    for kernel in report.kernels:
        made.add_row(
            kernel.kernel,
            f"{kernel.shape}, {kernel.dtype}",
            str(kernel.modules),
            {True: "yes", False: "no", None: "-"}[kernel.like_stock],
            _stock_exact(kernel, report.rows),
            _used(kernel),
            *(_gain(kernel, rows) for rows in timed),
        )
    made.caption = "times of stock MLX through ours, each call waiting for the one before"
    return made


def faults(report: MetalReport) -> list[str]:
    """What is wrong, a line each."""
    return [
        f"{kernel.kernel} {kernel.shape}, {kernel.dtype}: {kernel.detail}"
        for kernel in report.kernels
        if kernel.detail
    ]


def _used(kernel: KernelReport) -> str:
    if kernel.verdict != "used":
        return {"stock": "stock MLX", "none": "no kernel", "wrong": "WRONG"}[kernel.verdict]
    return f"rows {kernel.rows[0]}-{kernel.rows[-1]}"


def _stock_exact(kernel: KernelReport, widest: int) -> str:
    if kernel.stock_exact is None:
        return "-"
    if len(kernel.stock_exact) == widest - 1:
        return "yes"
    inexact = [rows for rows in range(2, widest + 1) if rows not in kernel.stock_exact]
    return f"not {inexact[0]}" + (f"-{inexact[-1]}" if len(inexact) > 1 else "")


def _gain(kernel: KernelReport, rows: int) -> str:
    if rows not in kernel.ours or not kernel.ours[rows]:
        return "-"
    return f"{kernel.stock[rows] / kernel.ours[rows]:.2f}"
