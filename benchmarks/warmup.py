"""How long `warmup` takes for several batch sizes: one executable after the other, and side by side.

    python benchmarks/warmup.py --checkpoints DIR [--backend jax] [--before OLDER_CHECKOUT] [--rounds 2]

Every line is a process of its own, which has loaded SmolLM2-135M before the clock starts; contenders take turns. DIR
holds `smollm2-135m-instruct`. Beside the seconds by the clock it tells those of all cores together, and how many other
processes took meanwhile, loading included (Linux): a line with many of them says nothing of the gain.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = """
import json, sys, time
import keras_xla
model, threads, sizes = sys.argv[1], int(sys.argv[2]), [int(size) for size in sys.argv[3:]]
layer = keras_xla.XLAGenerationLayer.from_pretrained(model, max_new_tokens=16)
if threads:
    from keras_xla.engine import warmup
    warmup.cores = lambda: threads
start, work = time.perf_counter(), time.process_time()
count = layer.warmup(sizes, 24, verbose=0)
print(json.dumps([time.perf_counter() - start, time.process_time() - work, count]))
"""


def busy() -> tuple[float, float]:
    """Seconds that all cores have worked: for everybody, and for the processes that this one has waited for."""
    with open("/proc/stat") as file:
        user, nice, system = map(int, file.readline().split()[1:4])
    mine = os.times()
    return (user + nice + system) / os.sysconf("SC_CLK_TCK"), mine.children_user + mine.children_system


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--backend", default="tensorflow")
    parser.add_argument("--before", type=pathlib.Path, help="an older checkout of this repository, to run, too")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8], help="of batches")
    args = parser.parse_args()
    model = str(args.checkpoints.resolve() / "smollm2-135m-instruct")
    cores = len(os.sched_getaffinity(0))
    contenders = [("one after the other", HERE.parent, 1), (f"{cores} at once", HERE.parent, cores)]
    if args.before:
        contenders.insert(0, (args.before.name, args.before.resolve(), 0))
    print("| backend | way | seconds | of all cores | of others | executables |\n|---|---|---|---|---|---|")
    for _ in range(args.rounds):
        for way, root, threads in contenders:
            env = {**os.environ, "PYTHONPATH": str(root), "KERAS_BACKEND": args.backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
            command = [sys.executable, "-c", SCRIPT, model, str(threads), *map(str, args.sizes)]
            before = busy()
            # In that folder: Python would import what is in this one.
            done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=True)
            seconds, work, count = json.loads(done.stdout.splitlines()[-1])
            everybody, mine = (after - then for after, then in zip(busy(), before, strict=True))
            print(
                f"| {args.backend} | {way} | {seconds:.1f} | {work:.1f} | {everybody - mine:.1f} | {count} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
