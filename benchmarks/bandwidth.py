"""How fast this machine reads memory: the limit of a decode step, which reads every weight once."""

import threading
import time

import numpy as np


def read_bandwidth(threads: int = 2, megabytes: int = 256, repeats: int = 3) -> float:
    """Bytes a second that `threads` numpy sums read, best of `repeats`."""
    arrays = [np.ones(megabytes * 250_000, "float32") for _ in range(threads)]
    best = 0.0
    for _ in range(repeats):
        workers = [threading.Thread(target=array.sum) for array in arrays]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, sum(array.nbytes for array in arrays) / (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    print(f"{read_bandwidth() / 1e9:.1f} GB/s")
