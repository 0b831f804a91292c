"""Triton, PyTorch's compiler, whose import ends a process in which TensorFlow shows its LLVM to all.

TensorFlow 2.20 and 2.21 load their libraries so that every other library of the process sees the LLVM inside of them.
Triton 3.7 brings an LLVM of its own, calls TensorFlow's instead, and its import is a segmentation fault
(https://github.com/tensorflow/tensorflow/issues/124205). PyTorch for CUDA installs Triton and imports it, and
transformers imports PyTorch where it is installed.
"""

import ctypes
import importlib.metadata
import sys

_OF_LLVM = "_ZN4llvm2cl6Option11addArgumentEv"  # in TensorFlow 2.20, too, which shows less of it
_FIRST = (3, 7)  # version that finds another LLVM


def refuse_triton() -> None:
    """Make the import of Triton an `ImportError` where it would end the process. PyTorch then does without it."""
    if "triton" not in sys.modules and _finds_another_llvm() and _an_llvm_is_seen():
        sys.modules["triton"] = None  # type: ignore[assignment]  # Python's way to say that it cannot be imported


def _finds_another_llvm() -> bool:
    try:
        major, minor, *_ = importlib.metadata.version("triton").split(".")
        return (int(major), int(minor)) >= _FIRST
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False


def _an_llvm_is_seen() -> bool:
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), _OF_LLVM)
