"""Measures the time of a call of torch or of another library in the same way as the benches here (cool_timer.h): a call in a
CUDA graph of many calls, after a rest of the card and two unmeasured replays, as the median of five replays. The time does not
depend on the host's speed, because the graph is queued after a kernel that holds the stream."""
import importlib
import statistics
import sys
import time

REPLAYS = 5
HOLD_CYCLES = 200_000  # 0.1 ms: longer than the host needs to launch a graph


def imported(program, name, remedy):
    """Returns the module; ends the program if there is none."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        sys.exit(f"{program}: {sys.executable} cannot import {name} ({error}): {remedy}")


class GraphTimer:
    """Serves one device and one thread. `torch` is the module."""

    def __init__(self, torch):
        self.torch = torch
        self.last_busy_us = 0.0

    def microseconds(self, call, sets):
        """Measures call(i), which rotates over `sets` inputs. Runs on a separate stream, after one call(0)."""
        torch = self.torch
        torch.cuda.synchronize()  # the inputs were made on another stream
        with torch.cuda.stream(torch.cuda.Stream()):
            call(0)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call(1)
            end.record()
            end.synchronize()
            once_us = begin.elapsed_time(end) * 1e3
            return self.graph_us(call, max(16 if once_us < 300 else 12, sets), once_us)

    def graph_us(self, call, calls, once_us):
        """Returns microseconds per call of a graph of `calls` on the current stream."""
        torch = self.torch
        stream = torch.cuda.current_stream()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin()
        for i in range(calls):
            call(i)
        graph.capture_end()
        busy_us = once_us * calls * (REPLAYS + 2)
        time.sleep(min(max(3e-6 * max(busy_us, self.last_busy_us), 0.005), 0.3))
        self.last_busy_us = busy_us
        times = []
        for replay in range(-2, REPLAYS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(HOLD_CYCLES)
            begin.record()
            graph.replay()
            end.record()
            stream.synchronize()
            if replay >= 0:
                times.append(begin.elapsed_time(end) * 1e3 / calls)
        return statistics.median(times)
