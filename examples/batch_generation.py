"""Complete every prompt of a file on many workers: Ray Data, with one XLAGenerationLayer in each of them.

    python examples/batch_generation.py                                       # a few questions, SmolLM2, two workers
    python examples/batch_generation.py prompts.jsonl --model path/to/folder  # rows {"id": ..., "prompt": ...}
    RAY_ADDRESS=auto python examples/batch_generation.py s3://bucket/prompts --out s3://bucket/answers --workers 64

Prompts come from a .txt file (one a line, whose number is its id), or from .jsonl or .parquet with the columns `id` and
`prompt`. Answers go to Parquet files below --out. Run the same command again after an interruption: what has an answer
there is left out. docs/batch_generation.md says why each part is as it is.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import socket
import time

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Say hello in Spanish.",
    "Which planet is the largest?",
    "What do bees make?",
    "How many legs does a spider have?",
    "Why is the sky blue? Answer in one sentence, for a child of five years who has never heard of physics.",
    "Write one sentence about a train that leaves Berlin at night and arrives at the sea in the morning.",
    "What is two plus two?",
    "Which language do people speak in Brazil?",
    "Name a fruit that is yellow.",
]
ANSWERS = pa.schema(
    {
        "id": pa.string(),
        "prompt": pa.string(),
        "text": pa.string(),  # null where `error` says why there is none
        "error": pa.string(),
        "tokens": pa.int32(),
        "seconds": pa.float64(),  # the row's share of its batch
        "worker": pa.string(),
        "compilations": pa.int32(),  # of the worker, so far
    }
)


class Generate:
    """A worker: builds the layer once, in its own process, and completes tables of prompts with it.

    Args:
        model: Hugging Face folder, hub name or GGUF file.
        batch: Prompts that run at a time.
        prompt_buckets: Lengths that prompts may have, in tokens; for each, two executables are compiled at most.
        max_new_tokens: Tokens of an answer at most.
    """

    def __init__(self, model: str, batch: int, prompt_buckets: list[int], max_new_tokens: int):
        import keras_xla  # here: the driver needs no TensorFlow, and a pickled layer holds all weights

        self.batch, self.worker = batch, f"{socket.gethostname()}:{os.getpid()}"
        self.layer = keras_xla.XLAGenerationLayer.from_pretrained(
            model,
            max_new_tokens=max_new_tokens,
            batch_buckets=[batch],
            cache_buckets=[length + max_new_tokens for length in prompt_buckets],
        )
        self.chats = getattr(self.layer.tokenizer, "chat_template", None) is not None

    def __call__(self, table: pa.Table) -> pa.Table:
        """The answers to a table with the columns `id` and `prompt`."""
        rows = sorted(table.select(["id", "prompt"]).to_pylist(), key=lambda row: len(row["prompt"] or ""))
        answers = []
        for first in range(0, len(rows), self.batch):
            batch = rows[first : first + self.batch]
            start = time.perf_counter()
            made = self._complete([row["prompt"] for row in batch])
            common = {
                "seconds": (time.perf_counter() - start) / len(batch),
                "worker": self.worker,
                "compilations": self.layer.trace_count,
            }
            for row, answer in zip(batch, made, strict=True):
                answers.append({"id": str(row["id"]), "prompt": row["prompt"], **answer, **common})
        return pa.Table.from_pylist(answers, ANSWERS)

    def _complete(self, prompts: list[str]) -> list[dict]:
        try:
            asked = [[{"role": "user", "content": prompt}] if self.chats and prompt else prompt for prompt in prompts]
            texts = self.layer.generate(asked)
        except (TypeError, ValueError) as error:  # a prompt that is empty or too long: the others of the batch are fine
            if len(prompts) == 1:
                return [{"text": None, "error": str(error), "tokens": 0}]
            half = len(prompts) // 2  # padded to the same batch: nothing compiles
            return self._complete(prompts[:half]) + self._complete(prompts[half:])
        counts = [len(self.layer.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
        return [{"text": text, "error": None, "tokens": n} for text, n in zip(texts, counts, strict=True)]


def prompts_of(ray, path: str | None):
    """A Ray dataset with the columns `id` and `prompt`."""
    if path is None:
        return ray.data.from_items([{"id": str(i), "prompt": prompt} for i, prompt in enumerate(QUESTIONS)])
    if path.endswith(".txt"):
        text = pathlib.Path(path).read_text(encoding="utf-8")
        lines = text.removesuffix("\n").split("\n") if text else []
        return ray.data.from_items([{"id": str(i), "prompt": line} for i, line in enumerate(lines, 1)])
    if path.endswith(".jsonl"):  # line by line: a table of all would make the number 7 of the id "007"
        lines = ray.data.read_text(path)
        names = {name for line in lines.take(100) for name in json.loads(line["text"])}
        dataset = lines.map_batches(parsed, batch_format="pyarrow")
    else:
        dataset = ray.data.read_parquet(path)
        names = dataset.schema().names
    if missing := {"id", "prompt"} - set(names):
        raise SystemExit(f"{path}: received the columns {sorted(names)}; expected {sorted(missing)} as well.")
    return dataset


def parsed(table: pa.Table) -> pa.Table:
    """The columns `id` and `prompt` of lines of JSON."""
    rows = [json.loads(line) for line in table["text"].to_pylist()]
    columns = {"id": [str(row["id"]) for row in rows], "prompt": [row.get("prompt") for row in rows]}
    return pa.table(columns, pa.schema([("id", pa.string()), ("prompt", pa.string())]))


def written(folder: str, *columns: str) -> pa.Table:
    """Columns of all answers below a folder."""
    files, path = pyarrow.fs.FileSystem.from_uri(folder)
    found = files.get_file_info(pyarrow.fs.FileSelector(path, recursive=True, allow_not_found=True))

    def read(path):
        try:
            with files.open_input_file(path) as file:
                return pyarrow.parquet.read_table(file, columns=list(columns))
        except pa.ArrowInvalid as error:
            print(
                f"{path} is broken, as an interruption leaves it ({error}). Its prompts are completed again; delete it."
            )
            return ANSWERS.empty_table().select(columns)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        tables = list(pool.map(read, sorted(file.path for file in found if file.path.endswith(".parquet"))))
    return pa.concat_tables([ANSWERS.empty_table().select(columns), *tables])


def answered(out: str) -> set[str]:
    """The ids that earlier runs have an answer for; what failed is tried again."""
    table = written(out, "id", "error")
    return set(table.filter(table["error"].is_null())["id"].to_pylist())


def without(table: pa.Table, ids: set[str]) -> pa.Table:
    """The rows that are not among `ids`."""
    return table.filter(pa.array([str(id_) not in ids for id_ in table["id"].to_pylist()], pa.bool_()))


def report(run: str, seconds: float) -> None:
    """Print what a run has written: all together, and for each worker."""
    table = written(run, "id", "error", "tokens", "seconds", "worker", "compilations")
    tokens, failed = sum(table["tokens"].to_pylist()), table.filter(table["error"].is_valid())
    made = f"{tokens} tokens in {seconds:.1f} s: {tokens / seconds:.1f} tokens/s"
    print(f"\n{len(table)} rows, {len(failed)} failed, {made}")
    totals = [("id", "count"), ("tokens", "sum"), ("seconds", "sum"), ("compilations", "max")]
    for worker in table.group_by("worker").aggregate(totals).sort_by("worker").to_pylist():
        speed = worker["tokens_sum"] / worker["seconds_sum"]
        print(
            f"  {worker['worker']}: {worker['id_count']} rows, {speed:.1f} tokens/s, "
            f"{worker['compilations_max']} compilations"
        )
    for row in failed.slice(0, 10).to_pylist():
        print(f"  failed: {row['id']}: {row['error']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="?", help="a .txt, .jsonl or .parquet file, or a folder of Parquet files")
    parser.add_argument("--out", default="answers", help="folder for the answers, shared by all machines")
    parser.add_argument("--model", help="Hugging Face folder, hub name or GGUF file; SmolLM2-135M-Instruct by default")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="cores of each worker")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--prompt-buckets", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--rows-per-task", type=int, help="rows that are lost by an interruption; 8 batches by default")
    args = parser.parse_args()
    try:
        import ray
    except ImportError as error:
        raise SystemExit(
            f"Batch generation needs Ray Data, and it cannot be imported: {error}. "
            "Install the extra ray: python -m pip install 'ray[data]>=2.60'"
        ) from error

    # For the workers, before they import anything: each keeps to its cores.
    environment = {"TF_NUM_INTRAOP_THREADS": str(args.threads), "NPROC": str(args.threads)}
    environment |= {name: os.environ[name] for name in ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL") if name in os.environ}
    # On one machine; one core more, for the tasks that read and write: Ray would wait for one for ever.
    here = {"num_cpus": args.workers * args.threads + 1, "include_dashboard": False}
    ray.init(runtime_env={"env_vars": environment}, **({} if os.environ.get("RAY_ADDRESS") else here))

    out = args.out if "://" in args.out else str(pathlib.Path(args.out).absolute())
    prompts = prompts_of(ray, args.prompts)
    if done := answered(out):
        print(f"{len(done)} prompts have an answer in {out}; they are left out.")
        prompts = prompts.map_batches(without, batch_format="pyarrow", fn_args=(done,))
        if not prompts.take(1):
            return  # there are no others
    if args.model is None:
        import smollm2

        args.model = str(smollm2.fetch())
    run, start = f"{out}/{time.strftime('%Y%m%d-%H%M%S')}", time.perf_counter()
    few = args.prompts is None  # and for all workers
    rows = args.rows_per_task or (1 if few else 8) * args.batch
    answers = prompts.repartition(target_num_rows_per_block=rows, strict=True).map_batches(
        Generate,
        fn_constructor_args=(args.model, args.batch, args.prompt_buckets, args.max_new_tokens),
        batch_format="pyarrow",
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=args.workers),
        num_cpus=args.threads,
    )
    answers.write_parquet(run)
    report(run, time.perf_counter() - start)


if __name__ == "__main__":
    main()
