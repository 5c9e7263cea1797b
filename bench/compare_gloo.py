"""Times all-to-all and all-gather on two processes, over MPI (mpi_speed) and over PyTorch's gloo, in turns.

Called by compare_torch with the paths of shardproof and mpi_speed. Exit status 1 if MPI is slower anywhere.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings

ROUNDS = 3
SECONDS = 0.5  # of measurement for each size in each round
MEGABYTES = (1, 16, 64)
PROCESSES = 2
BAR = 1.0


def best_seconds(call, barrier, enough):
    best, spent, rounds = float("inf"), 0.0, 0
    call()
    while True:
        barrier()
        start = time.perf_counter()
        call()
        elapsed = time.perf_counter() - start
        best, spent, rounds = min(best, elapsed), spent + elapsed, rounds + 1
        if enough(rounds >= 5 and spent > SECONDS):
            return best


def gloo_rank(rank, meeting):
    """What one process of gloo measures; rank 0 prints it."""
    import torch
    import torch.distributed as dist

    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=PROCESSES)

    def enough(own):  # as rank 0 sees it
        flag = torch.tensor([int(own)])
        dist.broadcast(flag, 0)
        return bool(flag)

    seconds = {}
    for megabytes in MEGABYTES:
        rows = torch.full((megabytes << 8, 1024), float(rank))
        moved, gathered = torch.empty_like(rows), torch.empty(PROCESSES * len(rows), 1024)
        half = len(rows) // PROCESSES

        def all_to_all():
            dist.all_to_all_single(moved, rows)

        def all_gather():
            dist.all_gather_into_tensor(gathered, rows)

        parts = list(gathered.chunk(PROCESSES))

        def all_gather_of_parts():
            dist.all_gather(parts, rows)

        all_to_all(), all_gather()
        for result, part in ((moved, half), (gathered, len(rows))):
            assert all((result[i * part : (i + 1) * part] == i).all() for i in range(PROCESSES))
        seconds[f"all_to_all/{megabytes}"] = best_seconds(all_to_all, dist.barrier, enough)
        seconds[f"all_gather/{megabytes}"] = min(
            best_seconds(call, dist.barrier, enough) for call in (all_gather, all_gather_of_parts)
        )
    if rank == 0:
        print(json.dumps(seconds))
    dist.destroy_process_group()


def gloo_seconds():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "rank"]
        ranks = [
            subprocess.Popen(command + [str(rank), folder + "/meeting"], stdout=subprocess.PIPE, text=True)
            for rank in range(PROCESSES)
        ]
        output = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise SystemExit("compare_gloo: gloo failed")
        return json.loads(output[0])


def mpi_seconds(shardproof, program):
    command = [shardproof, "launch", "-n", str(PROCESSES), "--", program, "exchanges"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    line = next(line for line in run.stdout.splitlines() if "{" in line)
    return json.loads(line[line.index("{") :])


def main():
    shardproof, program = sys.argv[1:]
    best = ({}, {})
    for _ in range(ROUNDS):
        for side, seconds in zip(best, (mpi_seconds(shardproof, program), gloo_seconds())):
            for name, value in seconds.items():
                side[name] = min(value, side.get(name, value))
    print(f"Exchanges of {PROCESSES} processes: MPI against PyTorch's gloo,", end=" ")
    print(f"MB that each process gives, ms, best of {ROUNDS} alternating rounds")
    print(f"  {'exchange/MB':<20} {'MPI':>9} {'gloo':>9} {'ratio':>7} {'bar':>7}")
    held = True
    for name, ours in best[0].items():
        ratio = best[1][name] / ours
        held = held and ratio >= BAR
        verdict = "holds" if ratio >= BAR else "MISSES"
        print(f"  {name:<20} {ours * 1e3:9.3f} {best[1][name] * 1e3:9.3f} {ratio:7.2f} {BAR:7.2f}  {verdict}")
    return 0 if held else 1


if sys.argv[1] == "rank":
    gloo_rank(int(sys.argv[2]), sys.argv[3])
    os._exit(0)  # gloo's threads need not be waited for
sys.exit(main())
