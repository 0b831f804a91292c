"""Many scenarios in several processes: `python -m tests.differential --count 600`."""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator

from tests.differential.ways import WAYS

PER_PROCESS = 25  # scenarios, after which another process begins: what XLA compiled stays in memory
PATIENCE = 600  # seconds for one scenario


def main() -> int:
    """Exit status 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--count", type=int, default=600, help="how many scenarios")
    parser.add_argument("--start", type=int, default=0, help="the number of the first one")
    parser.add_argument("--way", choices=WAYS, help="lead keras_xla that way, whatever the scenario has drawn")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print the scripts of these scenarios, and run nothing")
    parser.add_argument(
        "--shrink", action="store_true", help="print the smallest script that still differs as each does"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    numbers = range(given.start, given.start + given.count)
    if given.show or given.shrink:
        return _show(numbers, given.way, given.shrink)
    if given.worker:
        return _work(numbers, given.way)
    return _run_all(numbers, given.way, given.processes)


def _show(numbers: range, way: str | None, shrink: bool) -> int:
    from tests.differential.run import compared
    from tests.differential.scenario import numbered
    from tests.differential.shrink import smallest

    for number in numbers:
        scenario = numbered(number, way)
        if shrink:
            scenario = smallest(scenario, compared, lambda text: print(text, file=sys.stderr, flush=True))
        print(f"# scenario {number}\n{scenario.script()}")
        if shrink:
            print("".join(f"# {line}\n" for found in compared(scenario) for line in found.splitlines()))
    return 0


def _work(numbers: range, way: str | None) -> int:
    """Runs scenarios here; one line of JSON for each."""
    from tests.differential.run import compared
    from tests.differential.scenario import numbered

    for number in numbers:
        scenario, begun = numbered(number, way), time.perf_counter()
        try:
            found = compared(scenario)
        except BaseException:  # of the test itself
            found = [f"the test failed: {traceback.format_exc()}"]
        what = f"{scenario.kind}, {scenario.way}, {scenario.entry}, {scenario.dtype}"
        line = {"number": number, "what": what, "seconds": time.perf_counter() - begun, "found": found}
        print(json.dumps(line), flush=True)
    return 0


def _run_all(numbers: range, way: str | None, processes: int) -> int:
    todo: queue.Queue[range] = queue.Queue()
    for first in range(numbers.start, numbers.stop, PER_PROCESS):
        todo.put(range(first, min(first + PER_PROCESS, numbers.stop)))
    results: queue.Queue[dict | None] = queue.Queue()

    def serve():
        while True:
            try:
                part = todo.get_nowait()
            except queue.Empty:
                return results.put(None)
            for line in _in_process(part, way):
                results.put(line)

    with tempfile.TemporaryDirectory() as folder:  # no decision of another run, and none for it
        os.environ["KERAS_XLA_CACHE"] = folder
        for _ in range(processes):
            threading.Thread(target=serve, daemon=True).start()
        done, differing, working = 0, [], processes
        while working:
            line = results.get()
            if line is None:
                working -= 1
                continue
            done += 1
            if line["found"]:
                differing.append(line)
            verdict = "DIFFERS" if line["found"] else "equal"
            print(f"{done}/{len(numbers)} scenario {line['number']} ({line['what']}): {verdict}", flush=True)
    for line in sorted(differing, key=lambda line: line["number"]):
        print(f"\nscenario {line['number']} ({line['what']})")
        for found in line["found"]:
            print(f"  {found[:2000]}")
    print(
        f"\n{done} scenarios, {len(differing)} differ" + (f": {[d['number'] for d in differing]}" if differing else "")
    )
    return 1 if differing else 0


def _in_process(numbers: range, way: str | None) -> Iterator[dict]:
    """The lines of a process that runs these; of another one for those after a crash."""
    while numbers:
        command = [sys.executable, "-m", "tests.differential", "--worker"]
        command += ["--start", str(numbers.start), "--count", str(len(numbers))] + (["--way", way] if way else [])
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            while True:
                timer = threading.Timer(PATIENCE, process.kill)
                timer.start()
                text = process.stdout.readline()
                timer.cancel()
                if not text:
                    break
                if text.startswith("{"):
                    numbers = numbers[1:]
                    yield json.loads(text)
        if numbers:
            found = [f"the process died, or took more than {PATIENCE} s; exit status {process.returncode}"]
            yield {"number": numbers[0], "what": "crash", "seconds": 0.0, "found": found}
            numbers = numbers[1:]


if __name__ == "__main__":
    sys.exit(main())
