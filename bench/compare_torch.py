"""Times the same float32 operations in PyTorch and in device_bench, in turns, and prints the ratio of the best times.

Called by compare_torch with the path of device_bench. Exit status 1 if a ratio is below its bar.
"""

import json
import os
import subprocess
import sys
import time

import torch

ROUNDS = 4
SECONDS = 0.5  # of measurement for each side in each round


def attention(batch, heads, tokens, head_dim):
    q, k, v = (torch.randn(batch, heads, tokens, head_dim) for _ in range(3))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)


def product(rows, columns, depth):
    x, weight, bias = torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(columns)
    return lambda: torch.nn.functional.linear(x, weight, bias)


# Operation, arguments by the names that device_bench gives them, floating-point operations, least ratio.
CASES = [
    (attention, dict(batch=1, heads=8, tokens=2048, head_dim=64), 4 * 8 * 2048**2 * 64, 0.6),
    (attention, dict(batch=1, heads=24, tokens=1024, head_dim=128), 4 * 24 * 1024**2 * 128, 0.6),
    (product, dict(rows=4096, columns=3072, depth=3072), 2 * 4096 * 3072 * 3072, 0.9),
]


def torch_seconds(call):
    best, spent = float("inf"), 0.0
    call()
    while spent < SECONDS:
        start = time.perf_counter()
        call()
        elapsed = time.perf_counter() - start
        best, spent = min(best, elapsed), spent + elapsed
    return best


def our_seconds(program, name):
    """The best of several repetitions; raises where device_bench finds its own result wrong."""
    command = [
        program,
        f"--benchmark_filter=^{name}/real_time$",
        "--benchmark_format=json",
        f"--benchmark_min_time={SECONDS / 3}",
        "--benchmark_repetitions=3",
    ]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    runs = [run for run in report["benchmarks"] if run["run_type"] == "iteration"]
    failed = [run["error_message"] for run in runs if run.get("error_occurred")]
    if failed or not runs:
        raise SystemExit(f"compare_torch: {program} {name}: {failed[0] if failed else 'no such benchmark'}")
    return min(run["real_time"] for run in runs) / 1e3  # reported in milliseconds


def compare(program, make, sizes, operations, bar, threads):
    arguments = {**sizes, "threads": threads}
    name = "/".join([make.__name__] + [f"{key}:{value}" for key, value in arguments.items()])
    torch.set_num_threads(threads)
    call = make(**sizes)
    ours = theirs = float("inf")
    for _ in range(ROUNDS):
        ours = min(ours, our_seconds(program, name))
        theirs = min(theirs, torch_seconds(call))
    ratio = theirs / ours
    verdict = "holds" if ratio >= bar else "MISSES"
    speeds = f"{operations / ours / 1e9:8.0f} {operations / theirs / 1e9:8.0f}"
    print(f"{name:<68} {speeds} {ratio:7.2f} {bar:7.2f}  {verdict}", flush=True)
    return ratio >= bar


def main():
    program = sys.argv[1]
    cores = len(os.sched_getaffinity(0))
    print(f"CPU device against PyTorch {torch.__version__}, float32, GFLOP/s, best of {ROUNDS} alternating rounds")
    print(f"{'operation':<68} {'ours':>8} {'PyTorch':>8} {'ratio':>7} {'bar':>7}")
    with torch.no_grad():
        held = [
            compare(program, make, sizes, operations, bar, threads)
            for make, sizes, operations, bar in CASES
            for threads in sorted({1, cores})
        ]
    return 0 if all(held) else 1


sys.exit(main())
