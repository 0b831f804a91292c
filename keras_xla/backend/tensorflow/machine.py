"""The machine as far as times and memory depend on it."""

import functools
import os
import pathlib
import platform

import keras
import tensorflow as tf

from keras_xla.private.tensorflow.xla_flags import keep_nan

_SETTINGS = (  # read by TensorFlow, XLA, oneDNN and CUDA
    *("XLA_FLAGS", "TF_XLA_FLAGS", "TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
    *("OMP_NUM_THREADS", "TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC", "NVIDIA_TF32_OVERRIDE"),
    *("TF_GPU_THREAD_MODE", "TF_GPU_THREAD_COUNT", "TF_GPU_ALLOCATOR"),
)
_VECTORS = ("sse4_2", "avx", "avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "sve")
_CGROUP = pathlib.Path("/sys/fs/cgroup")  # the limits of a container


@functools.cache  # what TensorFlow sees cannot change once it has begun to work
def on_gpu() -> bool:
    """Whether steps and executables run on a GPU: there is one that is not hidden from TensorFlow."""
    return bool(tf.config.get_visible_devices("GPU"))


def on_cpu() -> bool:
    """Whether they run on the CPU."""
    return not on_gpu()


def machine() -> dict[str, str]:
    """What a measured time holds for, apart from what was run: `"device"` for people, `"versions"` and `"settings"`."""
    gpus = [_gpu_name(gpu) for gpu in tf.config.get_visible_devices("GPU")]
    parts = [f"{gpus.count(name)} x {name}" for name in sorted(set(gpus))]
    threads = (
        tf.config.threading.get_intra_op_parallelism_threads(),
        tf.config.threading.get_inter_op_parallelism_threads(),
    )
    settings = [f"threads={threads}", f"tf32={tf.config.experimental.tensor_float_32_execution_enabled()}"]
    settings += [f"optimizer={sorted(tf.config.optimizer.get_experimental_options().items())}"]
    settings += [f"jit={tf.config.optimizer.get_jit()}", f"nan={keep_nan()}"]
    settings += [f"{name}={os.environ[name]}" for name in _SETTINGS if name in os.environ]
    return {
        "device": ", ".join([*parts, f"{_cores()} of {_cpu_name()}"]),
        "versions": f"keras {keras.__version__} tensorflow {tf.__version__}",
        "settings": " ".join(settings),
    }


def wait_for_devices() -> None:
    """Let a GPU finish what it was given: TensorFlow does not wait for it."""
    if on_gpu():
        tf.test.experimental.sync_devices()


def free_memory() -> int | None:
    """Bytes of the computer's memory that this process may still take; None where nobody tells."""
    free = [_available(), _left_in_container()]
    return min((each for each in free if each is not None), default=None)


@functools.cache
def _gpu_name(gpu) -> str:
    details = tf.config.experimental.get_device_details(gpu)
    capability = ".".join(map(str, details.get("compute_capability", ())))
    return f"{details.get('device_name', 'GPU')} {capability}".strip()


@functools.cache
def _cpu_name() -> str:
    """The model with its vector instructions: two machines of one cluster may differ in them."""
    told = _table(pathlib.Path("/proc/cpuinfo"), ":")
    name = told.get("model name") or platform.processor() or platform.machine() or "CPU"
    flags = set((told.get("flags") or told.get("Features") or "").split())
    return " ".join([name, platform.machine(), *(each for each in _VECTORS if each in flags)])


@functools.cache
def cpu_features() -> str:
    """All that the processor can do, as the kernel tells it; XLA compiles for no less."""
    told = _table(pathlib.Path("/proc/cpuinfo"), ":")
    return told.get("flags") or told.get("Features") or platform.processor()


def _cores() -> str:
    """Those that this process may use, and how much of them."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, _, period = _text(_CGROUP / "cpu.max").partition(" ")
    share = f", {int(quota) / int(period):g} at a time," if quota.isdigit() and period.strip().isdigit() else ""
    return f"{count} cores{share}"


def _available() -> int | None:
    available = _table(pathlib.Path("/proc/meminfo"), ":").get("MemAvailable")
    return 1024 * int(available.split()[0]) if available else None


def _left_in_container() -> int | None:
    """What its limit leaves; pages of files that are not in use do not count, as the kernel gives them back."""
    limit, used = (_text(_CGROUP / name).strip() for name in ("memory.max", "memory.current"))
    if not (limit.isdigit() and used.isdigit()):
        return None
    return int(limit) - int(used) + int(_table(_CGROUP / "memory.stat", " ").get("inactive_file", 0))


def _table(path: pathlib.Path, separator: str) -> dict[str, str]:
    """A file of names and values; where a name comes again (each processor's), its first value."""
    lines = [line.partition(separator) for line in _text(path).splitlines()]
    return {name.strip(): value.strip() for name, _, value in reversed(lines)}


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
