"""Times the same float32 operations in PyTorch and in device_bench, in turns, and prints the ratio of the best times.

Called by compare_torch with the path of device_bench. Exit status 1 if a ratio is below its bar.
"""

import json
import os
import subprocess
import sys
import time

import torch

ROUNDS = 4  # of single operations
BLOCK_ROUNDS = 2
SECONDS = 0.5  # of measurement for each side in each round


def attention(batch, heads, tokens, head_dim):
    q, k, v = (torch.randn(batch, heads, tokens, head_dim) for _ in range(3))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)


def product(rows, columns, depth):
    x, weight, bias = torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(columns)
    return lambda: torch.nn.functional.linear(x, weight, bias)


WIDTH, HEADS = 3072, 24


def weights(*shapes):
    return [torch.randn(*shape) / shape[-1] ** 0.5 for shape in shapes]


def heads_of(x, scale):
    """[batch, tokens, width] -> [batch, heads, tokens, head_dim], normed over each head where a scale is given."""
    x = x.unflatten(-1, (HEADS, -1))
    if scale is not None:
        x = torch.nn.functional.rms_norm(x, (x.shape[-1],), scale, 1e-6)
    return x.transpose(1, 2)


def rotated(x, cosine, sine):
    real, imaginary = x.unflatten(-1, (-1, 2)).unbind(-1)
    return x * cosine + torch.stack([-imaginary, real], -1).flatten(3) * sine


def attended(q, k, v, tables):
    q, k = rotated(q, *tables), rotated(k, *tables)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def modulated(x, shift, scale):
    return torch.nn.functional.layer_norm(x, (WIDTH,), eps=1e-6) * (1 + scale[:, None]) + shift[:, None]


def flux_inputs(text, image):
    tables = torch.randn(text + image, WIDTH // HEADS), torch.randn(text + image, WIDTH // HEADS)
    return torch.randn(1, text, WIDTH), torch.randn(1, image, WIDTH), torch.randn(1, WIDTH), tables


class Stream:
    """The layers that a double block of FLUX.1 has for the text, or for the image."""

    def __init__(self):
        d = WIDTH
        self.mod, self.q, self.k, self.v, self.out = weights((6 * d, d), (d, d), (d, d), (d, d), (d, d))
        self.up, self.down = weights((4 * d, d), (d, 4 * d))
        self.bias = torch.randn(6 * d)
        self.scale = torch.randn(WIDTH // HEADS), torch.randn(WIDTH // HEADS)

    def linear(self, x, weight):
        return torch.nn.functional.linear(x, weight, self.bias[: weight.shape[0]])

    def start(self, x, temb):
        self.parts = self.linear(torch.nn.functional.silu(temb), self.mod).chunk(6, -1)
        x = modulated(x, self.parts[0], self.parts[1])
        q, k, v = (self.linear(x, weight) for weight in (self.q, self.k, self.v))
        return heads_of(q, self.scale[0]), heads_of(k, self.scale[1]), heads_of(v, None)

    def finish(self, x, attention):
        _, _, gate, shift, scale, mlp_gate = self.parts
        x = x + gate[:, None] * self.linear(attention, self.out)
        hidden = torch.nn.functional.gelu(self.linear(modulated(x, shift, scale), self.up), approximate="tanh")
        return x + mlp_gate[:, None] * self.linear(hidden, self.down)


def flux_double_block(text, image):
    y, x, temb, tables = flux_inputs(text, image)
    of_text, of_image = Stream(), Stream()

    def call():
        both = [torch.cat(pair, 2) for pair in zip(of_text.start(y, temb), of_image.start(x, temb))]
        attention = attended(*both, tables)
        return of_text.finish(y, attention[:, :text]), of_image.finish(x, attention[:, text:])

    return call


def flux_single_block(text, image):
    y, x, temb, tables = flux_inputs(text, image)
    d = WIDTH
    mod, to_q, to_k, to_v, up, out = weights((3 * d, d), (d, d), (d, d), (d, d), (4 * d, d), (d, 5 * d))
    bias, scales = torch.randn(4 * d), (torch.randn(d // HEADS), torch.randn(d // HEADS))

    def linear(x, weight):
        return torch.nn.functional.linear(x, weight, bias[: weight.shape[0]])

    def call():
        joint = torch.cat([y, x], 1)
        shift, scale, gate = linear(torch.nn.functional.silu(temb), mod).chunk(3, -1)
        normed = modulated(joint, shift, scale)
        hidden = torch.nn.functional.gelu(linear(normed, up), approximate="tanh")
        q, k, v = linear(normed, to_q), linear(normed, to_k), linear(normed, to_v)
        attention = attended(heads_of(q, scales[0]), heads_of(k, scales[1]), heads_of(v, None), tables)
        return joint + gate[:, None] * linear(torch.cat([attention, hidden], -1), out)

    return call


FLUX_OPERATIONS = 377e9

# Operation, arguments by the names that device_bench gives them, floating-point operations, least ratio, rounds.
CASES = [
    (attention, dict(batch=1, heads=8, tokens=2048, head_dim=64), 4 * 8 * 2048**2 * 64, 0.6, ROUNDS),
    (attention, dict(batch=1, heads=24, tokens=1024, head_dim=128), 4 * 24 * 1024**2 * 128, 0.6, ROUNDS),
    (product, dict(rows=4096, columns=3072, depth=3072), 2 * 4096 * 3072 * 3072, 0.9, ROUNDS),
    (flux_double_block, dict(text=512, image=1024), FLUX_OPERATIONS, 1 / 1.2, BLOCK_ROUNDS),
    (flux_single_block, dict(text=512, image=1024), FLUX_OPERATIONS, 1 / 1.2, BLOCK_ROUNDS),
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


def our_figures(program, name):
    """Seconds, the best of several repetitions, and peak memory in bytes where device_bench measures it.

    Raises where device_bench finds its own result wrong.
    """
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
    seconds = min(run["real_time"] for run in runs) / 1e3  # reported in milliseconds
    return seconds, max(run.get("peak_bytes", 0.0) for run in runs)


def torch_peak_bytes(call):
    """The peak of this process in one call, with its weights and all that PyTorch itself takes."""
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    call()
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def compare(program, make, sizes, operations, bar, rounds, threads):
    arguments = {**sizes, "threads": threads}
    name = "/".join([make.__name__] + [f"{key}:{value}" for key, value in arguments.items()])
    torch.set_num_threads(threads)
    call = make(**sizes)
    ours = theirs = float("inf")
    for _ in range(rounds):
        seconds, peak = our_figures(program, name)
        ours = min(ours, seconds)
        theirs = min(theirs, torch_seconds(call))
    ratio = theirs / ours
    verdict = "holds" if ratio >= bar else "MISSES"
    speeds = f"{operations / ours / 1e9:8.0f} {operations / theirs / 1e9:8.0f}"
    print(f"{name:<68} {speeds} {ratio:7.2f} {bar:7.2f}  {verdict}", flush=True)
    if peak:
        print(f"  peak memory of the process, weights included: ours {peak / 1e9:.2f} GB,", end=" ")
        print(f"PyTorch {torch_peak_bytes(call) / 1e9:.2f} GB", flush=True)
    return ratio >= bar


def main():
    program = sys.argv[1]
    cores = len(os.sched_getaffinity(0))
    print(f"CPU device against PyTorch {torch.__version__}, float32, GFLOP/s,", end=" ")
    print(f"best of {ROUNDS} alternating rounds (blocks: {BLOCK_ROUNDS})")
    print(f"{'operation':<68} {'ours':>8} {'PyTorch':>8} {'ratio':>7} {'bar':>7}")
    with torch.no_grad():
        held = [
            compare(program, *case, threads)
            for case in CASES
            for threads in sorted({1, cores})
        ]
    return 0 if all(held) else 1


sys.exit(main())
