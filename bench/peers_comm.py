#!/usr/bin/env python3
"""Measures what bench/cuda/comm_bench.cpp measures, with NCCL and with torch's symmetric memory: microseconds
per call inside a CUDA graph of 20 calls, as the median of nine replays on the rank that began last. "norm" is
the fastest all-reduce of bf16 rows, followed by torch's own addition to a float32 residual and RMSNorm,
without torch.compile. Needs torch and a GPU for each rank.

    bench/peers_comm.py [--ranks 2] [--rows 1,8,64,128,1024,8192] [--width 7168]
"""
import argparse
import os
import socket
import statistics
import sys

CALLS, REPLAYS = 20, 9


def measure(torch, dist, call):
    """Returns µs per call of the rank that began last, or None where the call is not possible."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            call()
    times = []
    for replay in range(REPLAYS + 2):
        dist.barrier()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        last_to_begin = torch.tensor([begin.elapsed_time(end)], device="cuda")
        dist.all_reduce(last_to_begin, op=dist.ReduceOp.MIN)  # the rank that began last did not wait for another
        if replay >= 2:
            times.append(last_to_begin.item() * 1e3 / CALLS)
    return statistics.median(times)


def worker(rank, options, port):
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(options.ranks))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=options.ranks, device_id=torch.device("cuda", rank))
    group = dist.group.WORLD
    if rank == 0:
        print(f"{options.ranks} ranks, a GPU each, torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}")
        print(f"{'rows':>6} {'bytes':>11} {'NCCL':>9} {'one-shot':>9} {'two-shot':>9} {'norm':>9} "
              f"{'NCCL gather':>12} {'NCCL scatter':>13} {'NCCL to-all':>12}  (µs)")
    for rows in options.rows:
        elements = rows * options.width
        plain = torch.ones(rows, options.width, dtype=torch.bfloat16, device="cuda")
        gathered = torch.empty(options.ranks * elements, dtype=torch.bfloat16, device="cuda")
        shared = symmetric.empty(rows, options.width, dtype=torch.bfloat16, device="cuda")
        symmetric.rendezvous(shared, group.group_name)
        shared.fill_(0)
        residual = torch.zeros(rows, options.width, device="cuda")
        weight = torch.ones(options.width, device="cuda")
        ops = torch.ops.symm_mem
        reduces = {"nccl": lambda: dist.all_reduce(plain),
                   "one": lambda: ops.one_shot_all_reduce(shared, "sum", group.group_name),
                   "two": lambda: ops.two_shot_all_reduce_(shared, "sum", group.group_name)}
        times = {name: measure(torch, dist, call) for name, call in reduces.items()}
        best = min(times, key=times.get)

        def norm():
            out = reduces[best]()
            residual.add_(out if best == "one" else plain if best == "nccl" else shared)
            torch.nn.functional.rms_norm(residual, (options.width,), weight, 1e-6)

        times["norm"] = measure(torch, dist, norm)
        flat = plain.flatten()
        part = torch.empty(elements // options.ranks, dtype=torch.bfloat16, device="cuda")
        even = flat[:part.numel() * options.ranks]
        times["gather"] = measure(torch, dist, lambda: dist.all_gather_into_tensor(gathered, flat))
        times["scatter"] = measure(torch, dist, lambda: dist.reduce_scatter_tensor(part, even))
        other = torch.empty_like(even)
        times["all"] = measure(torch, dist, lambda: dist.all_to_all_single(other, even))
        if rank == 0:
            print(f"{rows:>6} {elements * 2:>11} {times['nccl']:>9.2f} {times['one']:>9.2f} {times['two']:>9.2f} "
                  f"{times['norm']:>9.2f} {times['gather']:>12.2f} {times['scatter']:>13.2f} {times['all']:>12.2f}", flush=True)
    dist.destroy_process_group()


def count(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return int(text)


def counts(text):
    return [count(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=count, default=2)
    parser.add_argument("--rows", type=counts, default=counts("1,8,64,128,1024,8192"))
    parser.add_argument("--width", type=count, default=7168)
    options = parser.parse_args()
    try:
        import torch.multiprocessing
    except ModuleNotFoundError:
        sys.exit("bench/peers_comm.py: torch is missing; it is what is measured here")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(worker, args=(options, port), nprocs=options.ranks)


if __name__ == "__main__":
    main()
