# SPDX-License-Identifier: Apache-2.0
"""``triton.testing``: timing and comparison."""

from __future__ import annotations

import csv
import pathlib

from ..bench import do_bench as _do_bench
from ..notices import no_effect


def do_bench(fn, warmup=25, rep=100, grad_to_none=None, quantiles=None, return_mode="mean"):
    """Milliseconds of a call of ``fn``, as kiln.do_bench measures them; ``return_mode="all"`` is not kept. ``grad_to_none``: tensors whose
    gradients are dropped before each call."""
    if return_mode == "all":
        raise ValueError("do_bench(return_mode=\"all\"): use quantiles=")
    if grad_to_none is None:
        return _do_bench(fn, warmup, rep, quantiles=quantiles, return_mode=return_mode)

    def call():
        for tensor in grad_to_none:
            tensor.grad = None
        fn()

    return _do_bench(call, warmup, rep, quantiles=quantiles, return_mode=return_mode)


def assert_close(x, y, atol=None, rtol=None, err_msg=""):
    """AssertionError where two tensors or arrays differ: by more than 1e-2, unless ``atol`` and ``rtol`` say else."""
    import numpy

    x, y = (numpy.asarray(v.detach().float().cpu() if hasattr(v, "detach") else v) for v in (x, y))
    numpy.testing.assert_allclose(x, y, atol=1e-2 if atol is None else atol, rtol=0.0 if rtol is None else rtol, err_msg=err_msg)


def do_bench_cudagraph(fn, rep=20, grad_to_none=None, quantiles=None, return_mode="mean"):
    """As do_bench: times are those of the device's events, whether or not calls stand in a graph."""
    return do_bench(fn, rep=rep, grad_to_none=grad_to_none, quantiles=quantiles, return_mode=return_mode)


class Benchmark:
    """A table to measure: ``x_names`` take each of ``x_vals``, and ``line_arg`` each of ``line_vals``; ``args`` are the same in all."""

    def __init__(self, x_names, x_vals, line_arg, line_vals, line_names, plot_name, args, xlabel="", ylabel="", x_log=False, y_log=False,
                 styles=None):
        self.x_names, self.x_vals, self.line_arg, self.line_vals, self.line_names = list(x_names), list(x_vals), line_arg, line_vals, line_names
        self.plot_name, self.args, self.xlabel, self.ylabel, self.x_log, self.y_log = plot_name, dict(args), xlabel, ylabel, x_log, y_log
        self.styles = styles


class Mark:
    """A function that measures one point, a time or (the middle, the least, the most), for each of its tables."""

    def __init__(self, fn, benchmarks):
        self.fn, self.benchmarks = fn, benchmarks

    def run(self, show_plots=False, print_data=False, save_path="", return_df=False, **kwargs):
        """Measures all points. ``save_path``: a folder for the tables, as plot_name.csv. No plots are drawn."""
        if show_plots:
            no_effect("Mark.run(show_plots=True)", "no plots are drawn; print_data=True prints the table, and save_path= writes it")
        several = isinstance(self.benchmarks, (list, tuple))
        found = []
        for bench in self.benchmarks if several else [self.benchmarks]:
            columns, rows = _table(self.fn, bench, kwargs)
            if print_data:
                print(f"{bench.plot_name}:", *("  ".join(f"{cell!s:>14}" for cell in row) for row in (columns, *rows)), sep="\n", flush=True)
            if save_path:
                _write(pathlib.Path(save_path), bench.plot_name, columns, rows)
            if return_df:
                import pandas

                found.append(pandas.DataFrame(rows, columns=columns))
        return None if not return_df else found if several else found[0]


def _table(fn, bench: Benchmark, kwargs: dict) -> tuple:
    columns, rows = [*bench.x_names, *bench.line_names], []
    for x in bench.x_vals:
        values = list(x) if isinstance(x, (list, tuple)) else [x] * len(bench.x_names)
        if len(values) != len(bench.x_names):
            raise ValueError(f"Benchmark: {len(values)} values for {', '.join(bench.x_names)}")
        row = list(values)
        for line in bench.line_vals:
            point = fn(**dict(zip(bench.x_names, values)), **{bench.line_arg: line}, **bench.args, **kwargs)
            row.append(point[0] if isinstance(point, (list, tuple)) else point)
        rows.append(row)
    return columns, rows


def _write(folder: pathlib.Path, name: str, columns, rows) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])


def perf_report(benchmarks):
    """Decorator: of a function that measures one point of a Benchmark, or of a list of them."""
    return lambda fn: Mark(fn, benchmarks)
